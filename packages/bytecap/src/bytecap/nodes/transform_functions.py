"""`torch.func.jacrev` and its kin as Python functions that the evaluator inlines: closures around one known call.

In plain code, behind a graph break, they are what they stand for.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from bytecap.torch_capabilities import TORCH


def jacobian_of(name: str, func: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...]) -> Any:
    """`torch.func.<name>(func, **options)(*args)`."""
    return getattr(torch.func, name)(func, **options)(*args)


def _closure(name: str, func: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def wrapper_fn(*args: Any) -> Any:
        return jacobian_of(name, func, options, args)

    return wrapper_fn


def jacrev(
    func: Callable[..., Any], argnums: Any = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    """torch.func.jacrev."""
    return _closure("jacrev", func, {"argnums": argnums, "has_aux": has_aux, "chunk_size": chunk_size})


def jacfwd(
    func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable[..., Any]:
    """torch.func.jacfwd."""
    return _closure("jacfwd", func, {"argnums": argnums, "has_aux": has_aux, "randomness": randomness})


def _copy(function: Any) -> Any:
    """Another function of the same code: the evaluator knows the public one by its identity, and inlines this one."""
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)


_leaves = TORCH.tree_leaves
_scan = _copy(TORCH.associative_scan) if TORCH.has("associative_scan") else TORCH.associative_scan


def associative_scan(
    combine_fn: Callable[..., Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """torch's associative_scan by slices and steps, which have gradients. "pointwise" stands for a kernel without."""
    if combine_mode == "pointwise" and all(x.device.type != "cpu" for x in _leaves(xs)):
        combine_mode = "generic"
    return _scan(combine_fn, xs, dim, reverse, combine_mode)


def pull_back(
    func: Callable[..., Any], has_aux: bool, primals: tuple[Any, ...], is_recorded: bool, cotangents: Any
) -> Any:
    """What the second result of `torch.func.vjp(func, *primals)` gives for `cotangents`.

    is_recorded: whether grad mode was on there.
    """
    with torch.set_grad_enabled(is_recorded):
        back = torch.func.vjp(func, *primals, has_aux=has_aux)[1]
    return back(cotangents)


def make_pull_back(
    func: Callable[..., Any], has_aux: bool, primals: tuple[Any, ...], is_recorded: bool
) -> Callable[..., Any]:
    """The second result of `torch.func.vjp(func, *primals)`."""

    def wrapper(cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
        return pull_back(func, has_aux, primals, is_recorded, cotangents)

    return wrapper
