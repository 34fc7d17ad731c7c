"""Qualified names of callables, as documents write them: `target_name` and its inverse `resolve`.

    name ::= "torch." attr ("." attr)* | "operator." attr | "math." attr     # an attribute walk
           | namespace "." op "." overload                                  # torch.ops, "aten.add.Tensor"
           | "torch.ops." namespace "." op                                  # a packet: torch chooses the overload

`resolve` only walks attributes from the allowed roots; nothing is imported or evaluated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from absint.errors import UnknownTarget
from absint.torch_capabilities import TORCH

__all__ = ["resolve", "target_name"]

_ROOTS: dict[str, Any] = {"torch": torch, "operator": operator, "math": math}
# Where names are looked for, best name first: a function found twice keeps the first one's name.
_NAMESPACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
    ("torch.special", torch.special),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    *[(f"torch._C._{name}", getattr(TORCH, name)) for name in ("nn", "special", "linalg", "fft") if TORCH.has(name)],
    ("torch.nn.init", torch.nn.init),
    ("torch.autograd", torch.autograd),
    ("torch.random", torch.random),
    ("operator", operator),
    ("math", math),
)


def _entries() -> Iterator[tuple[str, Any]]:
    for prefix, namespace in _NAMESPACES:
        for name in sorted(dir(namespace)):
            try:
                value = getattr(namespace, name)
            except (AttributeError, RuntimeError):
                continue
            if callable(value) and getattr(namespace, name) is value:
                yield f"{prefix}.{name}", value


@cache
def _names() -> dict[int, tuple[str, Any]]:
    """Names by identity; the callable is kept so that its identity stays its own."""
    table: dict[int, tuple[str, Any]] = {}
    for name, value in _entries():
        known = table.get(id(value))
        if known is None or (known[0].rpartition(".")[2].startswith("_") and _is_better(name, known[0])):
            table[id(value)] = (name, value)
    return table


def _is_better(name: str, known: str) -> bool:
    """A public name in the same namespace is better than a private one."""
    prefix, _, last = name.rpartition(".")
    return known.rpartition(".")[0] == prefix and not last.startswith("_")


def target_name(target: Callable[..., Any]) -> str:
    """The qualified name of a callable; `resolve` is its inverse. Raises `UnknownTarget`.

    >>> target_name(torch.nn.functional.linear), target_name(torch.Tensor.view)
    ('torch._C._nn.linear', 'torch.Tensor.view')
    >>> target_name(torch.ops.aten.add.Tensor)
    'aten.add.Tensor'
    >>> target_name(torch.ops.aten.add)
    'torch.ops.aten.add'
    """
    if isinstance(target, TORCH.op_overload):
        return str(target)
    if isinstance(target, TORCH.op_overload_packet):
        return f"torch.ops.{target}"
    known = _names().get(id(target))
    if known is not None:
        return known[0]
    found = _by_attributes(target)
    if found is None:
        raise UnknownTarget(f"{target!r} has no qualified name under {', '.join(sorted(_ROOTS))}")
    return found


def _by_attributes(target: Any) -> str | None:
    """A name from the callable's own `__module__` and `__qualname__`, if the walk leads back to it."""
    module = getattr(target, "__module__", None)
    qualname = getattr(target, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None
    name = f"{module}.{qualname}"
    if name.partition(".")[0] not in _ROOTS:
        return None
    try:
        return name if resolve(name) is target else None
    except UnknownTarget:
        return None


def resolve(name: str) -> Callable[..., Any]:
    """The callable of a qualified name. Raises `UnknownTarget`.

    >>> resolve("operator.add")(1, 2)
    3
    """
    first, *rest = name.split(".")
    root = _ROOTS.get(first)
    if root is not None:
        value = root
        for part in rest:
            value = _attribute(value, part, name)
        if not rest or not callable(value):
            raise UnknownTarget(f"{name} names no callable")
        return value
    if len(rest) != 2:
        raise UnknownTarget(f"{name} is neither under {', '.join(sorted(_ROOTS))} nor an op overload")
    packet = _attribute(getattr(torch.ops, first), rest[0], name)
    overload = _attribute(packet, rest[1], name)
    if not isinstance(overload, TORCH.op_overload):
        raise UnknownTarget(f"{name} names no op overload")
    return overload


def _attribute(value: Any, part: str, name: str) -> Any:
    try:
        return getattr(value, part)
    except AttributeError:
        raise UnknownTarget(f"{name} has no part {part!r}") from None
