"""Calls in a form that takes symbolic sizes: nothing is fixed, and types are those of eager at every size."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from absint import AbstractMode, AbstractTensor, DataDependentError, abstract_call, contiguous
from absint.errors import NoTypeRule
from absint.forms import symbolic_form
from absint.functions import tensor_leaves
from absint.meta import from_tensor
from absint.symbolic import ShapeEnv, dim_of, make_size
from stagewire.expr import evaluate, symbols_of

HOLDS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
interpolate = torch.nn.functional.interpolate
getitem = torch.Tensor.__getitem__

CALLS: dict[str, Callable[[Any, Any, Any], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "last row": lambda x, n, m: (getitem, (x, n - 1), {}),
    "last column": lambda x, n, m: (getitem, (x, (slice(None), 0, m - 1)), {}),
    "behind an ellipsis": lambda x, n, m: (getitem, (x, (Ellipsis, m - 2, slice(1, None))), {}),
    "two numbers": lambda x, n, m: (getitem, (x, (n - 1, None, slice(None), m - 1)), {}),
    "nearest": lambda x, n, m: (interpolate, (x,), {"scale_factor": 2}),
    "to a size": lambda x, n, m: (interpolate, (x,), {"size": (7, 9), "mode": "bilinear", "align_corners": True}),
    "to a symbolic size": lambda x, n, m: (interpolate, (x,), {"size": [m * 3, m + 1], "mode": "nearest-exact"}),
    "half": lambda x, n, m: (interpolate, (x,), {"scale_factor": 0.5, "mode": "bilinear"}),
    "one and a half": lambda x, n, m: (interpolate, (x,), {"scale_factor": 1.5, "recompute_scale_factor": True}),
    "antialias": lambda x, n, m: (interpolate, (x,), {"size": (m + 1, 3), "mode": "bicubic", "antialias": True}),
    "rows of maxima": lambda x, n, m: (torch.max_pool1d, (x[0], 3, 2, 1), {"ceil_mode": True}),
    "rows of windows": lambda x, n, m: (torch.max_pool1d, (x[0, 0], (2,)), {}),
    "number": lambda x, n, m: (torch.tensor, (n,), {}),
    "quotient": lambda x, n, m: (torch.tensor, (n / 2,), {}),
    "numbers": lambda x, n, m: (torch.tensor, ([n, m, 3],), {"dtype": torch.float64}),
    "mixed numbers": lambda x, n, m: (torch.tensor, ((n, 1.5),), {}),
    "spaced": lambda x, n, m: (torch.linspace, (0, 1, n), {}),
    "spaced halves": lambda x, n, m: (torch.linspace, (-1.0, n - 1, m), {"dtype": torch.bfloat16}),
    "powers": lambda x, n, m: (torch.logspace, (0, n, 5), {}),
    "one of n": lambda x, n, m: (torch.nn.functional.one_hot, (torch.zeros(3, 2, dtype=torch.int64), n), {}),
    "rows of one of 5": lambda x, n, m: (torch.nn.functional.one_hot, (x[0, 0].long(), 5), {}),
    "kron": lambda x, n, m: (torch.kron, (x[0], x[:, 0, 0]), {}),
    "along": lambda x, n, m: (torch.take_along_dim, (x, x[:, :1].long(), 2), {}),
    "along all": lambda x, n, m: (torch.take_along_dim, (x, x[:, :1].long()), {}),
    "frames": lambda x, n, m: (torch.stft, (x[0, 0], 3, 2), {"center": False, "return_complex": True}),
    "padded frames": lambda x, n, m: (torch.stft, (x[:, 0, 0], 4, 1, 2), {"normalized": True, "return_complex": False}),
    "windows": lambda x, n, m: (
        torch.stft,
        (x[0, 0], 4, 1),
        {"window": x.new_ones(4), "onesided": False, "return_complex": True},
    ),
    "gru cell": lambda x, n, m: (torch.gru_cell, (x[:, 0, 0, :3], x[:, 1, 0, :2], *weights(x, 6)), {}),
    "lstm cell": lambda x, n, m: (torch.lstm_cell, (x[:, 0, 0, :3], (x[:, 1, 0, :2],) * 2, *weights(x, 8)), {}),
    "rnn cell": lambda x, n, m: (torch.rnn_tanh_cell, (x[:, 0, 0, :3], x[:, 1, 0, :2], *weights(x, 2)), {}),
    "gru": lambda x, n, m: layers(torch.gru, x[:, :, 0, :3], 6, x[:2, :, 1, :2].mean(0, True).expand(2, 3, 2)),
    "rows of a gru": lambda x, n, m: layers(torch.gru, x[:, :, 0, :3], 6, x[None, :, 1, 0, :2].expand(2, -1, 2), True),
    "lstm": lambda x, n, m: layers(torch.lstm, x[:, :, 0, :3], 8, (x[None, :, 1, 0, :2].expand(2, -1, 2),) * 2, True),
    "bicubic": lambda x, n, m: (interpolate, (), {"input": x, "scale_factor": (2.0, 3.0), "mode": "bicubic"}),
}


def weights(x: Any, rows: int, width: int = 3) -> tuple[Any, ...]:
    return x.new_ones(rows, width), x.new_ones(rows, 2), x.new_ones(rows), x.new_ones(rows)


def layers(function: Any, x: Any, rows: int, states: Any, batch_first: bool = False) -> Any:
    """Two directions of two values each."""
    return function, (x, states, [*weights(x, rows), *weights(x, rows)], True, 1, 0.0, False, True, batch_first), {}


@pytest.mark.parametrize("name", CALLS)
def test_forms_fix_nothing_and_agree_with_eager(name: str) -> None:
    env = ShapeEnv()
    n, m = make_size(env, env.create("n", 4)), make_size(env, env.create("m", 6))
    x = AbstractTensor(contiguous((n, 3, m, m), torch.float32))
    with AbstractMode():
        function, args, options = CALLS[name](x, n, m)
    found = list(tensor_leaves(abstract_call(function, args, options, mode=AbstractMode())))
    fixed = {name for relation in env.relations if relation.operator == "==" for name in symbols_of(relation.left)}
    assert fixed == ({"n"} if name == "gru" else set())
    for sizes in ({"n": 4, "m": 6}, {"n": 5, "m": 8}):
        function, args, options = CALLS[name](torch.ones(sizes["n"], 3, sizes["m"], sizes["m"]), *sizes.values())
        expected = list(tensor_leaves(function(*args, **options)))
        if all(HOLDS[one.operator](evaluate(one.left, sizes), evaluate(one.right, sizes)) for one in env.relations):
            assert [type_of(one, sizes) for one in found] == [type_of(one, sizes) for one in expected]


def type_of(tensor: Any, sizes: dict[str, int]) -> Any:
    meta = tensor.meta if isinstance(tensor, AbstractTensor) else from_tensor(tensor)
    values = [tuple(evaluate(dim_of(size), sizes) for size in part) for part in (meta.shape, meta.stride)]
    return meta.dtype, *values


def test_an_item_is_written() -> None:
    env = ShapeEnv()
    n = make_size(env, env.create("n", 4))
    x = AbstractTensor(contiguous((n, 3), torch.float32))
    abstract_call(torch.Tensor.__setitem__, (x, (n - 1, slice(None)), 1.0), mode=AbstractMode())
    assert x.storage_record.version == 1
    assert env.relations == []


def test_other_calls_stay_as_they_are() -> None:
    assert symbolic_form(torch.relu) is torch.relu
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(symbolic_form(getitem)(x, (0, slice(1, None))), x[0, 1:])
    images = torch.ones(1, 2, 3, 3)
    assert torch.equal(symbolic_form(interpolate)(images, scale_factor=2), interpolate(images, scale_factor=2))


def test_as_tensor_of_a_tensor_is_that_tensor() -> None:
    x = AbstractTensor(contiguous((3,), torch.float32), requires_grad=True)
    assert abstract_call(torch.as_tensor, (x,), mode=AbstractMode()) is x
    other = abstract_call(torch.as_tensor, (x,), {"dtype": torch.float64}, mode=AbstractMode())
    assert (other.dtype, other.requires_grad) == (torch.float64, True)
    with pytest.warns(UserWarning, match="copy construct"):
        assert not abstract_call(torch.tensor, (x,), mode=AbstractMode()).requires_grad


def _packed(function: Any, gates: int, states: Any, x: Any, batch_sizes: Any) -> Any:
    return function, (x, batch_sizes, states, [*weights(x, gates * 2)], True, 1, 0.0, False, False)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_relu", "padded"])
def test_packed_sequences_are_refused(name: str, symbolic: bool) -> None:
    def call(x: Any, batch_sizes: Any) -> Any:
        if name == "padded":
            return torch._pad_packed_sequence, (x, batch_sizes, False, 0.0, 6)
        state = x.new_zeros(1, 3, 2)
        gates, states = {"lstm": (4, (state, state)), "gru": (3, state), "rnn_relu": (1, state)}[name]
        return _packed(getattr(torch, name), gates, states, x, batch_sizes)

    function, args = call(torch.ones(12, 3), torch.tensor([3, 3, 2, 2, 1, 1]))
    assert function(*args)[0].shape in {(12, 2), (6, 3, 3)}
    env = ShapeEnv()
    n = make_size(env, env.create("n", 6)) if symbolic else 6
    with AbstractMode():
        x = AbstractTensor(contiguous((12, 3), torch.float32))
        function, args = call(x, AbstractTensor(contiguous((n,), torch.int64)))
    with pytest.raises(DataDependentError, match="packed sequence"):
        abstract_call(function, args, mode=AbstractMode())


@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3), ("rnn_tanh", 1)])
def test_layers_of_cudnn_are_refused(name: str, gates: int) -> None:
    """They would be a write of a storage in the graph, on whichever machine; without cuDNN they are ordinary calls."""

    def on_gpu(*shape: int) -> AbstractTensor:
        return AbstractTensor(contiguous(shape, torch.float32, torch.device("cuda", 0)))

    params = [on_gpu(gates * 4, 3), on_gpu(gates * 4, 4), on_gpu(gates * 4), on_gpu(gates * 4)]
    state = on_gpu(1, 2, 4)
    given = (on_gpu(5, 2, 3), (state, on_gpu(1, 2, 4)) if name == "lstm" else state, params)
    rest = (True, 1, 0.0, False, False, False)
    with pytest.raises(NoTypeRule, match="cuDNN"):
        abstract_call(getattr(torch, name), (*given, *rest), mode=AbstractMode())
    with torch.backends.cudnn.flags(enabled=False):
        out, *_ = abstract_call(getattr(torch, name), (*given, *rest), mode=AbstractMode())
    assert (out.shape, out.device.type) == ((5, 2, 4), "cuda")
