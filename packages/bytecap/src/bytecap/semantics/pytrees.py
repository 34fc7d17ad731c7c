"""Trees of values: tuples, lists and dicts with other values as leaves, as `torch.utils._pytree` sees them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.torch_capabilities import TORCH

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

Leaves = Iterator[Value]


def leaves_of(tracer: Tracer, tree: Value) -> list[Value]:
    """The leaves in order."""
    found: list[Value] = []
    map_leaves(tracer, tree, lambda leaf: found.append(leaf) or leaf)
    return found


def map_leaves(tracer: Tracer, tree: Value, change: Callable[[Value], Value]) -> Value:
    """A tree of the same form with other leaves."""
    if type(tree) is TupleValue and (tree.cls is tuple or hasattr(tree.cls, "_fields")):
        return TupleValue([map_leaves(tracer, item, change) for item in tree.values(tracer)], cls=tree.cls)
    if type(tree) is ListValue:
        return ListValue([map_leaves(tracer, item, change) for item in tree.values(tracer)])
    if isinstance(tree, DictValue) and tree.cls in (dict, OrderedDict):
        made = DictValue(cls=tree.cls)
        for key, item in tree.pairs(tracer):
            made.set_item(tracer, key, map_leaves(tracer, item, change))
        return made
    TORCH.require("tree_nodes")
    if tree.python_type() in TORCH.tree_nodes:
        raise UnsupportedCall(f"a {tree.describe()} among the arguments of a function transform")
    return change(tree)


def spread(tracer: Tracer, prefix: Value, tree: Value) -> list[Value]:
    """For each leaf of `tree` the leaf of `prefix` above it: a prefix has a leaf where the tree may have more."""
    if isinstance(prefix, Constant):
        return [prefix for _ in leaves_of(tracer, tree)]
    if isinstance(prefix, DictValue) and isinstance(tree, DictValue):
        pairs = tree.pairs(tracer)
        above = [prefix.lookup(tracer, key) for key, _ in pairs]
        if None not in above and len(pairs) == prefix.length(tracer):
            return [leaf for up, (_, item) in zip(above, pairs, strict=True) for leaf in spread(tracer, up, item)]  # type: ignore[arg-type]
    if isinstance(prefix, (TupleValue, ListValue)) and isinstance(tree, (TupleValue, ListValue)):
        above, items = prefix.values(tracer), tree.values(tracer)
        if len(above) == len(items):
            return [leaf for up, item in zip(above, items, strict=True) for leaf in spread(tracer, up, item)]
    raise UnsupportedCall("dimensions of vmap that are not of the form of the arguments")
