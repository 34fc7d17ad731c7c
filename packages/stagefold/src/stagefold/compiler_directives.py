"""Marks of torch.compiler's names that a program puts on callables, where more is done than bytecap's own do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

import bytecap
from stagefold.compiled_module import CompiledModule

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
