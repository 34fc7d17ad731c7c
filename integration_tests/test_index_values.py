"""Indices that only the data of a call tells to be wrong: refused where eager refuses them, in every form of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stagefold

ROWS, WIDTH = 4, 3
INDICES = {
    "last": ROWS - 1,
    "minus one": -1,
    "minus rows": -ROWS,
    "below minus rows": -ROWS - 1,
    "rows": ROWS,
    "far": 10**7,
    "far below": -(10**7),
}
Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def across(i: torch.Tensor) -> torch.Tensor:
    """The index once for each column."""
    return i[:, None].repeat(1, WIDTH)  # eager's gather reads an expanded index of 32 bits as one of 64


def ones(i: torch.Tensor) -> torch.Tensor:
    return torch.full((i.shape[0], WIDTH), 0.5)


def with_item(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[i] = 1.0
    return y


def masked_scatter(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """As many elements are taken of a source of three as the index says."""
    mask = torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) < i[1].clamp(0, ROWS)
    return x.masked_scatter(mask, torch.ones(ROWS - 1)) * 2


class Classes(torch.autograd.Function):
    """A function of the program itself that marks classes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[: i.shape[0]] * F.one_hot(i, WIDTH)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.new_ones(ROWS, WIDTH), None


class Rows(torch.autograd.Function):
    """A function of the program itself whose backward skips indices, as ATen's does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(i)
        return x[i.clamp(0, ROWS - 1)]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (i,) = ctx.saved_tensors
        return torch.ops.aten.embedding_dense_backward(gradient, i, ROWS, -1, False), None


CALLS: dict[str, Call] = {
    "x[i]": lambda x, i: x[i] * 2,
    "x[:, i]": lambda x, i: x.t()[:, i] * 2,
    "x[i, i]": lambda x, i: x[i, i % WIDTH] * 2,
    "x[i] = 1": with_item,
    "index_put": lambda x, i: x.index_put((i,), ones(i)),
    "index_put, accumulated": lambda x, i: x.index_put((i,), ones(i), accumulate=True),
    "take": lambda x, i: x.take(i) * 2,
    "put": lambda x, i: x.put(i, i.to(x.dtype)),
    "masked_scatter": masked_scatter,
    "take_along_dim": lambda x, i: x.take_along_dim(across(i), 0),
    "gather": lambda x, i: x.gather(0, across(i)) * 2,
    "scatter": lambda x, i: x.scatter(0, across(i), 1.0),
    "scatter of a tensor": lambda x, i: x.scatter(0, across(i), ones(i)),
    "scatter_add": lambda x, i: x.scatter_add(0, across(i), ones(i)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, across(i), ones(i), "amax"),
    "scatter_reduce, sums": lambda x, i: x.scatter_reduce(0, across(i), ones(i), "sum"),
    "index_select": lambda x, i: x.index_select(0, i) * 2,
    "index_select of columns": lambda x, i: x.t().index_select(1, i) * 2,
    "index_add": lambda x, i: x.index_add(0, i, ones(i)),
    "index_copy": lambda x, i: x.index_copy(0, i, ones(i)),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index_reduce": lambda x, i: x.index_reduce(0, i, ones(i), "prod"),
    "embedding": lambda x, i: F.embedding(i, x) * 2,
    "embedding with padding": lambda x, i: F.embedding(i, x, padding_idx=1),
    "embedding_bag": lambda x, i: F.embedding_bag(i[:, None], x),
    "nll_loss": lambda x, i: F.nll_loss(x.t()[: i.shape[0]] * 2, i),
    "nll_loss, not reduced": lambda x, i: F.nll_loss(x.t()[: i.shape[0]], i, reduction="none"),
    "nll_loss ignoring -1": lambda x, i: F.nll_loss(x.t()[: i.shape[0]], i, ignore_index=-1),
    "nll_loss with weights": lambda x, i: F.nll_loss(x.t()[: i.shape[0]], i, weight=x[:, 0].detach()),
    "nll_loss of images": lambda x, i: F.nll_loss(x.t()[: i.shape[0], :, None], i[:, None]),
    "cross_entropy": lambda x, i: F.cross_entropy(x.t()[: i.shape[0]], i),
    "cross_entropy, smoothed": lambda x, i: F.cross_entropy(x.t()[: i.shape[0]], i, label_smoothing=0.1),
    "cross_entropy with weights": lambda x, i: F.cross_entropy(x.t()[: i.shape[0]], i, weight=x[:, 0].detach()),
    "one_hot": lambda x, i: F.one_hot(i, ROWS) @ x,
    "one_hot of ATen": lambda x, i: torch.ops.aten.one_hot(i, ROWS) @ x,
    "one_hot of an overload": lambda x, i: torch.ops.aten.one_hot.default(i, ROWS) @ x,
    "one_hot in a custom function": lambda x, i: Classes.apply(x, i),
    "rows of a custom function": lambda x, i: Rows.apply(x, i) * 2,
    "embedding_dense_backward": lambda x, i: torch.ops.aten.embedding_dense_backward(x[:2], i, ROWS, 1, False),
    "one_hot of pairs": lambda x, i: F.one_hot(i[:, None], ROWS).to(x.dtype) + x.sum(),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x.t()[: i.shape[0]], i),
    "multilabel_margin_loss": lambda x, i: F.multilabel_margin_loss(x.t()[: i.shape[0]], i[:, None].expand(-1, ROWS)),
}
INT32 = ("x[i]", "index_put", "gather", "scatter_add", "index_select", "index_add", "embedding")
"""Those that take int32 as well."""


def outcome(call: Call, rows: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...] | type[Exception]:
    """The result and the gradient, or the class of what is raised."""
    x = rows.detach().clone().requires_grad_(rows.requires_grad)
    try:
        y = call(x, index)
        if x.requires_grad:
            y.square().sum().backward()
    except (IndexError, RuntimeError) as error:
        return type(error)
    return (y.detach(), x.grad) if x.grad is not None else (y.detach(),)


def assert_alike(call: Call, dtype: torch.dtype, *, gradient: bool, dynamic: bool) -> None:
    rows = torch.rand(ROWS, WIDTH).add(0.5).requires_grad_(gradient)
    compiled = stagefold.compile(call, dynamic=dynamic)
    for tried in (0, 1, *INDICES.values()):
        index = torch.tensor([0, tried], dtype=dtype)
        expected, found = outcome(call, rows, index), outcome(compiled, rows, index)
        if isinstance(expected, type):
            assert isinstance(found, type), f"{tried} is refused by eager, and computed by compiled code"
            assert issubclass(found, expected), f"{tried}: {found} in place of {expected}"
        else:
            assert not isinstance(found, type), f"{tried} is refused, and computed by eager"
            torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CALLS)
def test_indices_are_refused_as_in_eager(name: str, gradient: bool) -> None:
    assert_alike(CALLS[name], torch.int64, gradient=gradient, dynamic=False)


@pytest.mark.parametrize("name", CALLS)
def test_so_they_are_with_symbolic_sizes(name: str) -> None:
    assert_alike(CALLS[name], torch.int64, gradient=True, dynamic=True)


@pytest.mark.parametrize("name", INT32)
def test_so_are_those_of_32_bits(name: str) -> None:
    assert_alike(CALLS[name], torch.int32, gradient=False, dynamic=False)


EMPTY: dict[str, Call] = {
    "index_select": lambda x, i: x.index_select(0, i),
    "embedding": lambda x, i: F.embedding(i, x),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x.new_zeros(i.shape[0], 0), "amax"),
    "index_add": lambda x, i: x.index_add(0, i, x.new_zeros(i.shape[0], 0)),
    "x[i]": lambda x, i: x[i],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EMPTY)
def test_so_are_those_of_rows_without_elements(name: str, dynamic: bool) -> None:
    rows = torch.zeros(ROWS, 0)
    compiled = stagefold.compile(EMPTY[name], dynamic=dynamic)
    for tried in (1, ROWS):
        index = torch.tensor([0, tried])
        expected, found = outcome(EMPTY[name], rows, index), outcome(compiled, rows, index)
        if isinstance(expected, type):
            assert isinstance(found, type)
            assert issubclass(found, expected)
        else:
            assert not isinstance(found, type)
            assert found[0].shape == expected[0].shape


SCALAR: dict[str, Call] = {
    "index_select": lambda x, i: x.index_select(0, i) * 2,
    "gather": lambda x, i: x.gather(0, i) * 2,
    "take": lambda x, i: x.take(i),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index_add": lambda x, i: x.index_add(0, i, i.to(x.dtype)),
    "scatter": lambda x, i: x.scatter(0, i, 1.0),
    "take_along_dim": lambda x, i: x.take_along_dim(i),
}


@pytest.mark.parametrize("name", SCALAR)
def test_so_are_those_of_a_scalar(name: str) -> None:
    call = SCALAR[name]
    compiled = stagefold.compile(call)
    for tried in (0, 1, -1, 10**7):
        x, index = torch.tensor(2.5, requires_grad=True), torch.tensor([tried])
        expected, found = outcome(call, x, index), outcome(compiled, x, index)
        if isinstance(expected, type):
            assert isinstance(found, type), f"{tried} is refused by eager, and computed by compiled code"
            assert issubclass(found, expected)
        else:
            torch.testing.assert_close(found, expected)
