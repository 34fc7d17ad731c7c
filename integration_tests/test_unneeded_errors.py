"""What may raise because of data raises whether or not anybody needs its result: unused, read for its type alone, read
in part, or needed by the backward alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

import stagefold
from absint.targets import resolve
from absint.testing.data_errors import EXAMPLES

Program = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Of several threads of ATen's, any may be the first that finds an index to refuse, and the message names it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def refuses(program: Program, good: tuple[Any, ...], bad: tuple[Any, ...], **options: Any) -> None:
    """The compiled program takes what eager takes, and refuses with eager's exception what eager refuses."""
    call = stagefold.compile(program, fullgraph=True, **options)
    torch.testing.assert_close(call(*good), program(*good), equal_nan=True)
    with pytest.raises((IndexError, RuntimeError)) as expected:
        program(*bad)
    with pytest.raises(type(expected.value)) as found:
        call(*bad)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("use", ["nothing", "type"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_call_of_aten(name: str, use: str) -> None:
    call = resolve(name)
    (good, spec), (bad, _) = (tree_flatten(EXAMPLES[name].arguments(refused=refused)) for refused in (False, True))

    def program(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        left = iter(tensors)
        given = [next(left) if isinstance(one, torch.Tensor) else one for one in good]
        args, kwargs = tree_unflatten(given, spec)
        results = call(*args, **kwargs)
        if use == "nothing":
            return x * 2
        return x * 2 + torch.zeros_like(results if isinstance(results, torch.Tensor) else results[0]).sum()

    x = torch.ones(2)
    tensors, refused = ([one for one in leaves if isinstance(one, torch.Tensor)] for leaves in (good, bad))
    refuses(program, (x, *tensors), (x, *refused))


AT, FAR = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 99])
X = torch.rand(3, 4)
IN_PART: dict[str, Program] = {
    "rows": lambda x, i: x[i][:2] * 2,
    "a column": lambda x, i: x[:, 0][i][0] + 1,
    "reshaped rows": lambda x, i: x[i].reshape(-1)[:3] * 2,
    "rows of rows": lambda x, i: x[i][torch.tensor([0, 0])] * 2,
    "steps": lambda x, i: (x[i] * 2).t()[:, ::2] + 1,
    "losses": lambda x, i: F.nll_loss(x, i, reduction="none")[:2] * 2,
    "classes": lambda x, i: F.one_hot(i, 4)[1] * 2,
    "padding": lambda x, i: F.pad(x[i], (0, 0, 0, -1)) * 2,
    "none of it": lambda x, i: x[i][:0] * 2,
    "quotients": lambda x, i: (i // (i - 99))[:2] * 2,
    "half of each row": lambda x, i: x[i].chunk(2, -1)[0] * 2,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", IN_PART)
def test_a_result_that_is_read_in_part(name: str, dynamic: bool) -> None:
    refuses(IN_PART[name], (X, AT), (X, FAR), dynamic=dynamic)


def test_what_the_backward_alone_needs() -> None:
    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, t: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(t[i])
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            (rows,) = ctx.saved_tensors
            return grad * rows, None, None

    def program(x: torch.Tensor, t: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return Rows.apply(x, t, i) + 1

    refuses(program, (torch.ones(3, 4, requires_grad=True), X, AT), (torch.ones(3, 4, requires_grad=True), X, FAR))
    x, y = (torch.ones(3, 4, requires_grad=True) for _ in range(2))
    program(x, X, AT).sum().backward()
    stagefold.compile(program)(y, X, AT).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
