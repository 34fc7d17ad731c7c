"""Calls in a form that takes symbolic sizes: nothing is fixed, and types are those of eager at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from absint import AbstractMode, AbstractTensor, abstract_call, contiguous
from absint.forms import symbolic_form
from absint.symbolic import ShapeEnv, dim_of, make_size
from stagewire.expr import evaluate

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
    "bicubic": lambda x, n, m: (interpolate, (), {"input": x, "scale_factor": (2.0, 3.0), "mode": "bicubic"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_forms_fix_nothing_and_agree_with_eager(name: str) -> None:
    env = ShapeEnv()
    n, m = make_size(env, env.create("n", 4)), make_size(env, env.create("m", 6))
    x = AbstractTensor(contiguous((n, 3, m, m), torch.float32))
    function, args, options = CALLS[name](x, n, m)
    meta = abstract_call(function, args, options, mode=AbstractMode()).meta
    assert [relation for relation in env.relations if relation.operator == "=="] == []
    for sizes in ({"n": 4, "m": 6}, {"n": 5, "m": 8}):
        function, args, options = CALLS[name](torch.ones(sizes["n"], 3, sizes["m"], sizes["m"]), *sizes.values())
        expected = function(*args, **options)
        assert tuple(evaluate(dim_of(size), sizes) for size in meta.shape) == expected.shape
        assert tuple(evaluate(dim_of(step), sizes) for step in meta.stride) == expected.stride()


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
