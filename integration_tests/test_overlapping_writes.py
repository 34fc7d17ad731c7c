"""Writes that read elements which they write: eager raises, or computes what it computes; other writes are captured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stagefold

FIRST = torch.tensor([0, 0])

OVERLAPPING: dict[str, Callable[[Tensor], Any]] = {
    "the rows before": lambda x: x[1:].add_(x[:-1]),
    "a row": lambda x: x.add_(x[0]),
    "a number": lambda x: x.div_(x[0, 0]),
    "a column": lambda x: x.sub_(x[:, :1]),
    "a turned copy": lambda x: x[:, :3].copy_(x[:, :3].t()),
    "rows by a slice": lambda x: x.__setitem__(slice(1, None), x[:2]),
    "rows at indices": lambda x: x.index_put_((torch.tensor([1, 2]),), x[:2]),
    "sums at indices": lambda x: x.index_put_((FIRST,), x[0], accumulate=True),
    "index_add": lambda x: x.index_add_(0, FIRST, x[:2]),
    "scatter_add": lambda x: x.scatter_add_(0, torch.tensor([[0, 0, 1, 1]]), x[:1]),
    "masked_scatter": lambda x: x.masked_scatter_(torch.tensor([[False], [True], [True]]), x[:2]),
    "lists": lambda x: torch._foreach_add_([x[0], x[1]], [x[0], x[0]]),
    "out": lambda x: torch.add(x[:2], 1, out=x[1:]),
    "rows put together": lambda x: torch.cat([x[:1], x[1:2]], out=x[:2]),
}

APART: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda x: x.add_(x),
    "itself by another view": lambda x: x.mul_(x.t().t()),
    "another row": lambda x: x[0].add_(x[1]),
    "between": lambda x: x[:, ::2].add_(x[:, 1::2]),
    "the other half": lambda x: x.__setitem__((slice(None), slice(0, 2)), x[:, 2:] * 2),
    "lists": lambda x: torch._foreach_mul_([x[0], x[1]], [x[2], x[2]]),
    "out": lambda x: torch.add(x, 1, out=x),
}


def outcome(call: Callable[[Tensor], Any], x: Tensor) -> Tensor | type[Exception]:
    x = x.clone()
    try:
        call(x)
    except RuntimeError:
        return RuntimeError
    return x


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_they_are_left_to_eager(name: str, turned: bool, dynamic: bool) -> None:
    x = torch.arange(12.0).reshape(4, 3).t() if turned else torch.arange(12.0).reshape(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs plain
        found = outcome(stagefold.compile(OVERLAPPING[name], dynamic=dynamic), x + 1)
    expected = outcome(OVERLAPPING[name], x + 1)
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor)
        assert torch.equal(found, expected)
    else:
        assert found is expected


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", APART)
def test_what_shares_memory_and_no_element_is_captured(name: str, dynamic: bool) -> None:
    x = torch.arange(12.0).reshape(3, 4) + 1
    found = outcome(stagefold.compile(APART[name], fullgraph=True, dynamic=dynamic), x)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, outcome(APART[name], x))
