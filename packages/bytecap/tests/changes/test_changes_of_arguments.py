"""What may differ between the arguments of two calls: marks and memory of tensors, aliasing, kinds of numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bytecap.testing.changes import check_arguments

T = torch.arange(6.0).reshape(2, 3)


def describe(x):
    return x * 2, x.is_contiguous(), x.stride(), x.storage_offset(), x.requires_grad, x.is_leaf, type(x).__name__


def ones(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)


def with_gradient(value: float) -> torch.Tensor:
    made = ones(3, requires_grad=True)
    made.grad = torch.full((3,), value)
    return made


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return ones(6)


def retaining() -> torch.Tensor:
    made = ones(3, requires_grad=True) * 1
    made.retain_grad()
    return made


def marked() -> torch.Tensor:
    made = ones(3)
    made._is_param = True
    return made


def overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    memory = ones(4)
    return memory[:3], memory[1:]


def viewed() -> tuple[torch.Tensor, torch.Tensor]:
    memory = ones(4)
    return memory, memory.view(2, 2)


def twice(make: Callable[[torch.Tensor], Any]) -> Any:
    return make(ones(3))


def writes(x, y):
    return x.add_(1), y * 2


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Any], Callable[[], Any]]] = {
    "a view": (describe, lambda: (ones(6),), lambda: (ones(6)[:],)),
    "offset": (describe, lambda: (ones(6),), lambda: (ones(7)[1:],)),
    "offset of a view": (lambda x: (x * 2, x[1:].storage_offset()), lambda: (ones(6),), lambda: (ones(7)[1:],)),
    "a view, asked": (lambda x: (x * 2, x._is_view()), lambda: (ones(6),), lambda: (ones(6)[:],)),
    "no view, asked": (lambda x: (x * 2, x._is_view()), lambda: (ones(6)[:],), lambda: (ones(6),)),
    "inference tensor": (describe, lambda: (ones(6),), lambda: (inference_tensor(),)),
    "channels last": (
        lambda x: (x * 2, x.is_contiguous(memory_format=torch.channels_last)),
        lambda: (ones(2, 3, 4, 5),),
        lambda: (ones(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "gradient appears": (
        lambda x: x * 2 if x.grad is None else x.grad * 3,
        lambda: (ones(3, requires_grad=True),),
        lambda: (with_gradient(5.0),),
    ),
    "gradient goes": (
        lambda x: x * 2 if x.grad is None else x.grad * 3,
        lambda: (with_gradient(5.0),),
        lambda: (ones(3, requires_grad=True),),
    ),
    "retains its gradient": (
        lambda x: (x * 2, x.retains_grad), lambda: (ones(3, requires_grad=True) * 1,), lambda: (retaining(),),
    ),
    "sum's sign": (lambda x: x * 2 if x.sum().item() > 0 else x * 3, lambda: (ones(3),), lambda: (-ones(3),)),
    "dtype of a scalar": (lambda x: x * 2, lambda: (torch.tensor(3.0),), lambda: (torch.tensor(3),)),
    "rank of a factor": (
        lambda x, y: x * y,
        lambda: (ones(3, dtype=torch.float16), torch.tensor(3.0)),
        lambda: (ones(3, dtype=torch.float16), torch.tensor([3.0])),
    ),
    "negative view": (lambda x: x * 2, lambda: (ones(3),), lambda: (ones(3, dtype=torch.complex64).conj().imag,)),
    "bool for int": (lambda x, n: x + n, lambda: (T.long(), 1), lambda: (T.long(), True)),
    "float for int": (lambda x, n: x + n, lambda: (T.long(), 1), lambda: (T.long(), 1.0)),
    "an argument more": (lambda x, n=None: x + 1 if n is None else x + n, lambda: (T,), lambda: (T, 5)),
    "parameter": (
        lambda x: (x * 2, isinstance(x, nn.Parameter)),
        lambda: (T,),
        lambda: (nn.Parameter(T.clone(), requires_grad=False),),
    ),
    "marked as a parameter": (lambda x: (x * 2, isinstance(x, nn.Parameter)), lambda: (ones(3),), lambda: (marked(),)),
    "buffer": (lambda x: (x * 2, isinstance(x, nn.Buffer)), lambda: (T.clone(),), lambda: (nn.Buffer(T.clone()),)),
    "stride of a dimension of one": (
        describe, lambda: (ones(1, 3),), lambda: (ones(1, 3).as_strided((1, 3), (77, 1)),),
    ),
    "empty": (lambda x: (x * 2).sum(), lambda: (ones(2, 3),), lambda: (ones(0, 3),)),
    "expanded, written": (lambda x: x.add_(1) * 2, lambda: (ones(3),), lambda: (ones(1).expand(3),)),
    "no leaf, written": (
        lambda x: x.add_(1) * 2, lambda: (ones(3),), lambda: (ones(3, requires_grad=True) * 1,),
    ),
    "leaf, written": (lambda x: x.add_(1) * 2, lambda: (ones(3),), lambda: (ones(3, requires_grad=True),)),
    "overlap": (writes, lambda: (ones(3), ones(3)), overlapping),
    "two shapes of one memory": (writes, lambda: (ones(4), ones(2, 2)), viewed),
    "one tensor twice": (writes, lambda: (ones(3), ones(3)), lambda: twice(lambda t: (t, t))),
    "two dtypes of one memory": (
        writes, lambda: (ones(3), ones(3, dtype=torch.int32)), lambda: twice(lambda t: (t, t.view(torch.int32))),
    ),
    "no more one tensor": (writes, lambda: twice(lambda t: (t, t)), lambda: (ones(3), ones(3))),
    "one tensor twice in a list": (
        lambda items: writes(*items), lambda: ([ones(3), ones(3)],), lambda: twice(lambda t: ([t, t],)),
    ),
    "deep in a dict": (
        lambda d: d["a"]["b"][0] * 2 + d["a"]["b"][1],
        lambda: ({"a": {"b": [T, 1]}},),
        lambda: ({"a": {"b": [T, 2]}},),
    ),
    "a function": (lambda x, f: f(x), lambda: (T, lambda x: x * 2), lambda: (T, lambda x: x * 3)),
    "a class": (lambda x, f: f(x), lambda: (T, list), lambda: (T, tuple)),
    "a dtype": (lambda x, t: x.to(t), lambda: (T, torch.float32), lambda: (T, torch.float16)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_other_arguments(name: str) -> None:
    check_arguments(*CASES[name])


MADE: dict[str, Callable[[], Any]] = {
    "tuple": lambda: tuple(range(2)),
    "int": lambda: int("100000"),
    "float": lambda: float("1.5"),
    "str": lambda: "".join(["a!", "b"]),
    "bytes": lambda: bytes([1, 2, 3]),
    "complex": lambda: complex("1j"),
    "range": lambda: range(3),
    "size": lambda: torch.Size([1, 2]),
    "tuple of tensors": lambda: (T, [T]),
}


@pytest.mark.parametrize("operator_", [lambda x, a, b: (x + 1, a is b), lambda x, a, b: (x + 1, operator.is_not(a, b))])
@pytest.mark.parametrize("name", MADE)
def test_one_object_or_equal_ones(name: str, operator_: Callable[..., Any]) -> None:
    """Objects of one value may be one object or two: only identity tells."""
    one, other = MADE[name](), MADE[name]()
    check_arguments(operator_, lambda: (T, one, one), lambda: (T, one, other))
    check_arguments(operator_, lambda: (T, one, other), lambda: (T, other, other))


SENTINEL = ("no", "value")


def test_a_sentinel_that_is_a_tuple() -> None:
    def program(x: torch.Tensor, value: Any) -> Any:
        return x * 2 if value is SENTINEL else x * 3

    check_arguments(program, lambda: (T, SENTINEL), lambda: (T, tuple(iter(SENTINEL))))
