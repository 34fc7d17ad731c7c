"""Trees of Python containers as data: how the leaves of arguments and results lie in them.

A container class of a library is known where that library is imported, and registered with `torch.utils._pytree`; no
module is imported for it. Elsewhere a named tuple is one of another class, a class with names (an output class of
transformers) a dict, and any other a tuple.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from typing import Any, Literal, NoReturn

import msgspec

from absint.errors import UnwirableArgument
from absint.wire import from_arg, to_arg
from stagefold.errors import BadArtifact, CannotExport
from stagefold.torch_capabilities import TORCH
from stagewire.graph import Arg


class Tree(msgspec.Struct, frozen=True):
    """kind: "class" is any other container. name: of the class, with its module. keys: of a dict, or what names the
    parts of a class. context: what the class was registered to be made again with, beside its parts."""

    kind: Literal["leaf", "tuple", "list", "dict", "namedtuple", "class"]
    children: tuple[Tree, ...] = ()
    keys: tuple[str | int | bool | None, ...] = ()
    name: str = ""
    context: Arg = None


_PLAIN: dict[type, Literal["tuple", "list", "dict"]] = {tuple: "tuple", list: "list", dict: "dict"}


def tree_of(spec: Any) -> Tree:
    """The tree of a TreeSpec of torch. Raises `CannotExport` for a class that is made with what is no data."""
    if spec.is_leaf():
        return Tree("leaf")
    children, kind, context = tuple(map(tree_of, spec.children())), spec.type, spec.context
    name = "" if kind in _PLAIN else f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(context, type):  # of a named tuple
        return Tree("namedtuple", children, context._fields, f"{context.__module__}:{context.__qualname__}")  # type: ignore[attr-defined]
    keys = tuple(context) if isinstance(context, (list, tuple)) and len(context) == len(children) else ()
    are_names = all(key is None or type(key) in (str, int, bool) for key in keys)
    if kind in _PLAIN:
        if not are_names:
            raise CannotExport(f"a dict with the keys {list(keys)!r} cannot be written down")
        return Tree(_PLAIN[kind], children, keys)
    try:
        return Tree("class", children, keys if are_names else (), name, to_arg(context))
    except UnwirableArgument:
        raise CannotExport(f"a {kind.__qualname__} with {context!r} is no container that can be written down") from None


def build(tree: Tree, leaves: Iterator[Any]) -> Any:
    """The containers round these leaves, in order."""
    if tree.kind == "leaf":
        return next(leaves)
    parts = [build(child, leaves) for child in tree.children]
    match tree.kind:
        case "tuple":
            return tuple(parts)
        case "list":
            return parts
        case "dict":
            return dict(zip(tree.keys, parts, strict=True))
    module, _, name = tree.name.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if tree.kind == "namedtuple":
        is_one = isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == tree.keys
        name = name.rpartition(".")[2]
        known: Any = found if is_one else collections.namedtuple(name, map(str, tree.keys), rename=True)  # type: ignore[misc]
        return known._make(parts)
    if isinstance(found, type) and found in TORCH.containers:
        return TORCH.containers[found].unflatten_fn(parts, from_arg(tree.context, _no_object))
    return dict(zip(tree.keys, parts, strict=True)) if len(tree.keys) == len(parts) > 0 else tuple(parts)


def _no_object(leaf: Any) -> NoReturn:
    raise BadArtifact(f"the containers of results name {leaf!r}, which is no data")


def paths(tree: Tree, prefix: str = "") -> Iterator[str]:
    """How each leaf is reached, as Python writes it."""
    if tree.kind == "leaf":
        yield prefix
    is_keyed = tree.kind == "dict" or (tree.kind == "class" and len(tree.keys) == len(tree.children))
    for number, child in enumerate(tree.children):
        step = (
            f".{tree.keys[number]}"
            if tree.kind == "namedtuple"
            else f"[{(tree.keys[number] if is_keyed else number)!r}]"
        )
        yield from paths(child, f"{prefix}{step}")
