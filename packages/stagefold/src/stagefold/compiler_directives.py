"""Marks of torch.compiler's names that a program puts on callables, where more is done than bytecap's own do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

import bytecap
from stagefold.compiled_module import CompiledModule

NOT_OFFERED = {
    "assume_constant_result": "it is called stagefold.assume_constant; torch's own mark counts as well",
    "nested_compile_region": "torch's own works in code that stagefold compiles",
    "wrap_numpy": "torch's own works in code that stagefold compiles",
    "set_enable_guard_collectives": "guards are checked by each rank alone; torch's own is for torch.compile",
    "load_compiled_function": "see stagefold.save_cache_artifacts and load_cache_artifacts",
    "error_on_graph_break": "compile(fullgraph=True) refuses breaks, stagefold.explain lists them",
}
"""Names of torch.compiler that stagefold has no own form of, and why."""

Target = TypeVar("Target", bound=Callable[..., Any])


def disable(target: Any = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Run a callable plain, inside and outside of compiled code. Without `target`, a decorator.

    target: a function, a method, an nn.Module (a module like it is returned, which shares everything with it), or a
        class (the calls of its instances).
    recursive: what it calls runs plain, too; otherwise that may be compiled by itself.
    reason: told where the call ends a graph.

    >>> import torch
    >>> @disable
    ... def log(x): return x
    >>> log(torch.ones(1))
    tensor([1.])
    """
    if target is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(target, CompiledModule):
        target = target._orig_mod
    settings: dict[str, Any] = dict(recursive=recursive, reason=reason)
    if not isinstance(target, torch.nn.Module):
        return bytecap.disable(target, **settings)
    call = bytecap.disable(target.__call__, **settings)
    return CompiledModule(target, call, None, functools.partial(disable, **settings))


def allow_in_graph(target: Target | Iterable[Target]) -> Any:
    """Say that a function belongs into graphs. It is traced like every other function, so that its operations are
    compiled with their neighbours; one call of it is not one node, as it is with torch.compile. Returns the function.
    """
    return [allow_in_graph(each) for each in target] if isinstance(target, (list, tuple)) else target


def cudagraph_mark_step_begin() -> None:
    """Accepted, and not needed: a result that is still held is never overwritten by the next replay of a CUDA graph."""
