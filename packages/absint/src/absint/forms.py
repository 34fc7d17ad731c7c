"""Calls whose C++ takes sizes as numbers alone, in a form that takes symbolic ones: for abstract tensors.

x[n - 1, :]                    x.select(0, n - 1)[:]
upsample(x, None, factors)     aten.upsample(x, sizes, factors)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from absint.symbolic import is_symbolic, make_float
from absint.symbolic.floats import FUNCTIONS, as_float
from absint.targets import resolve

__all__ = ["SYMBOLIC_FORMS", "get_item", "interpolate", "set_item", "symbolic_form"]

aten = torch.ops.aten


def get_item(x: Any, index: Any) -> Any:
    """`x[index]`."""
    base, rest = _selected(x, index)
    return torch.Tensor.__getitem__(base, rest) if base is x or rest else base


def set_item(x: Any, index: Any, value: Any) -> None:
    """`x[index] = value`."""
    base, rest = _selected(x, index)
    torch.Tensor.__setitem__(base, rest if base is x or rest else ..., value)


def _selected(x: Any, index: Any) -> tuple[Any, Any]:
    """What symbolic numbers in the index select, and the rest of the index."""
    items = index if type(index) is tuple else (index,)
    places = [at for at, item in enumerate(items) if is_symbolic(item)]
    if not places or any(_is_mask(item) for item in items):
        return x, index
    rank = x.dim()
    for at in reversed(places):
        before, after = items[:at], items[at + 1 :]
        dim = rank - 1 - _width(after) if Ellipsis in before else _width(before)
        x = x.select(dim, items[at])
    return x, tuple([item for at, item in enumerate(items) if at not in places])


def _is_mask(item: Any) -> bool:
    return isinstance(item, (bool, list)) or (
        isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    )


def _width(items: tuple[Any, ...]) -> int:
    """How many dimensions these items of an index take."""
    return sum(item is not None and item is not Ellipsis for item in items)


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """`torch.nn.functional.interpolate`."""
    rank = input.dim() - 2
    name = _UPSAMPLING.get((mode, rank))
    is_open = any(is_symbolic(one) for one in (*input.shape, *(size if isinstance(size, (tuple, list)) else (size,))))
    is_odd = recompute_scale_factor or antialias or (size is None) == (scale_factor is None)
    if not is_open or is_odd or name is None or ("nearest" in mode and align_corners is not None):
        options = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
        return torch.nn.functional.interpolate(input, *options)
    factors = [None] * rank if scale_factor is None else _each(scale_factor, rank)
    sizes = _each(size, rank)
    if size is None:
        sizes = [_scaled(one, factor) for one, factor in zip(input.shape[2:], factors, strict=True)]
    align = () if "nearest" in mode else (bool(align_corners),)
    return getattr(aten, name).default(input, sizes, *align, *factors)


def _each(value: Any, rank: int) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value] * rank


def _scaled(size: Any, factor: float) -> Any:
    """`floor(size * factor)`; exact where the factor is whole, else for the one size that it is now."""
    return size * int(factor) if float(factor).is_integer() else math.floor(int(size) * factor)


_UPSAMPLING = {
    ("linear", 1): "upsample_linear1d",
    ("bilinear", 2): "upsample_bilinear2d",
    ("trilinear", 3): "upsample_trilinear3d",
    ("bicubic", 2): "upsample_bicubic2d",
    **{("nearest", rank): f"upsample_nearest{rank}d" for rank in (1, 2, 3)},
    **{("nearest-exact", rank): f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)},
}


def _of_sizes(name: str) -> Callable[[Any], Any]:
    """A function of the module `math` that keeps what is computed of sizes open."""
    host = FUNCTIONS[name]

    def apply(number: Any) -> Any:
        return make_float(number.node.env, name, number) if isinstance(number, torch.SymFloat) else host(number)

    return apply


SYMBOLIC_FORMS: dict[str, Callable[..., Any]] = {
    "torch.sym_float": as_float,
    **{f"math.{name}": _of_sizes(name) for name in FUNCTIONS},
    "torch.Tensor.__getitem__": get_item,
    "torch.Tensor.__setitem__": set_item,
    "torch.nn.functional.interpolate": interpolate,
}
"""By the name of the call that they replace; on tensors without symbolic sizes they are that call."""

_BY_FUNCTION: dict[Any, Callable[..., Any]] = {resolve(name): form for name, form in SYMBOLIC_FORMS.items()}


def symbolic_form(function: Any) -> Any:
    """The form of a call that takes symbolic sizes, or the call."""
    try:
        return _BY_FUNCTION.get(function, function)
    except TypeError:  # not hashable
        return function
