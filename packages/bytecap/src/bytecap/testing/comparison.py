"""Structural equality of two object graphs: values, types, tensor layouts, and which parts are one object."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch

# How many items of an iterator are compared: some have no end.
_ENOUGH = 20
_ATOMS = (int, float, complex, bool, str, bytes, type(None), type, range, slice, torch.dtype, torch.device)


def differences(left: Any, right: Any) -> list[str]:
    """Where two object graphs differ, as sentences; empty when they are alike.

    Two places that hold one object on the left must hold one object on the right, and the other way round.

    >>> differences([1, (2, 3)], [1, (2, 4)])
    ['value[1][1]: 3 is not 4']
    """
    return list(_Comparison().walk(left, right, "value"))


class _Comparison:
    def __init__(self) -> None:
        self.forward: dict[int, int] = {}
        self.backward: dict[int, int] = {}
        self.alive: list[Any] = []

    def walk(self, left: Any, right: Any, where: str) -> Iterator[str]:
        if type(left) is not type(right):
            yield f"{where}: {_name(left)} is not {_name(right)}"
            return
        if isinstance(left, _ATOMS):
            if not _atoms_equal(left, right):
                yield f"{where}: {left!r} is not {right!r}"
            return
        if not (isinstance(left, tuple) and not left) and not isinstance(left, frozenset):
            seen = self.forward.get(id(left)), self.backward.get(id(right))
            if seen != (None, None):
                if seen != (id(right), id(left)):
                    yield f"{where}: shared on one side only"
                return
            self.forward[id(left)], self.backward[id(right)] = id(right), id(left)
            self.alive += [left, right]
        yield from self.parts(left, right, where)

    def parts(self, left: Any, right: Any, where: str) -> Iterator[str]:
        if isinstance(left, torch.Tensor):
            yield from _tensor_differences(left, right, where)
            return
        if isinstance(left, torch.nn.Module):
            yield from self.mapping(left.__dict__, right.__dict__, f"vars({where})")
            return
        if isinstance(left, FunctionType | MethodType):
            if left.__code__ is not right.__code__:
                yield f"{where}: another function"
            return
        if isinstance(left, ModuleType):
            if left is not right:
                yield f"{where}: another module"
            return
        if isinstance(left, dict):
            yield from self.mapping(left, right, where)
        elif isinstance(left, list | tuple | deque):
            if len(left) != len(right):
                yield f"len({where}): {len(left)} is not {len(right)}"
            for index, (a, b) in enumerate(zip(left, right, strict=False)):
                yield from self.walk(a, b, f"{where}[{index}]")
        elif isinstance(left, set | frozenset):
            if left != right:
                yield f"{where}: {left!r} is not {right!r}"
        elif isinstance(left, BaseException):
            for name in ("args", "__cause__", "__context__", "__suppress_context__"):
                yield from self.walk(getattr(left, name), getattr(right, name), f"{where}.{name}")
        elif isinstance(left, Iterator):
            rest = [list(islice(side, _ENOUGH)) for side in (left, right)]
            yield from self.walk(*rest, f"list({where})")
        if isinstance(left, deque) and left.maxlen != right.maxlen:
            yield f"{where}.maxlen: {left.maxlen} is not {right.maxlen}"
        if isinstance(getattr(left, "__dict__", None), dict):
            yield from self.mapping(left.__dict__, right.__dict__, f"vars({where})")
        for name in _slots(type(left)):
            yield from self.walk(getattr(left, name, None), getattr(right, name, None), f"{where}.{name}")

    def mapping(self, left: dict[Any, Any], right: dict[Any, Any], where: str) -> Iterator[str]:
        keys = list(left), list(right)
        plain = [[key if isinstance(key, _ATOMS) else _name(key) for key in side] for side in keys]
        if plain[0] != plain[1]:
            yield f"list({where}): {plain[0]!r} is not {plain[1]!r}"
            return
        for a, b in zip(*keys, strict=True):
            yield from self.walk(left[a], right[b], f"{where}[{a!r}]")


def _slots(cls: type) -> list[str]:
    """Names of the slots of classes written in Python."""
    descriptors = [
        (name, found) for base in cls.__mro__ for name, found in vars(base).items() if "__slots__" in vars(base)
    ]
    return [name for name, found in descriptors if isinstance(found, MemberDescriptorType)]


def _atoms_equal(left: Any, right: Any) -> bool:
    if isinstance(left, float | complex):
        return repr(left) == repr(right)
    return bool(left == right)


def _tensor_differences(left: torch.Tensor, right: torch.Tensor, where: str) -> Iterator[str]:
    for name in ("dtype", "shape", "device", "requires_grad", "is_leaf"):
        a, b = getattr(left, name), getattr(right, name)
        if a != b:
            yield f"{where}.{name}: {a} is not {b}"
            return
    if left.stride() != right.stride():
        yield f"{where}.stride(): {left.stride()} is not {right.stride()}"
    if not torch.allclose(left.detach(), right.detach(), rtol=1e-5, atol=1e-6, equal_nan=True):
        yield f"{where}: {left!r} is not {right!r}"
    if left.is_leaf and (left.grad is None) != (right.grad is None):
        yield f"{where}.grad: on one side only"
    elif left.is_leaf and left.grad is not None:
        yield from _tensor_differences(left.grad, right.grad, f"{where}.grad")


def _name(value: Any) -> str:
    return f"{type(value).__qualname__} {value!r:.80}"
