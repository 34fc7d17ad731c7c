"""Sizes that data decides, in torch calls: which of them the graph has read, and which results give new ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractTensor
from absint.symbolic.size import is_unknown
from bytecap.errors import DataDependent
from bytecap.objects.data_numbers import HostFloat, read_size
from stagewire.expr import Expr, symbols_of
from stagewire.graph import Arg, leaves

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer


def has_unknown(given: Any) -> bool:
    """Whether an argument of a torch call has a number in it that data decides."""
    match given:
        case torch.SymInt():
            return is_unknown(given)
        case AbstractTensor():
            return not given.meta.is_static and has_unknown((*given.meta.shape, *given.meta.stride))
        case HostFloat():
            return True
        case tuple() | list():
            return any(map(has_unknown, given))
        case slice():
            return has_unknown((given.start, given.stop, given.step))
        case dict():
            return any(map(has_unknown, given.values()))
    return False


def refuse_unread(tracer: Tracer, args: Iterable[Arg]) -> None:
    """A call is given no size that no tensor of the graph has."""
    for arg in args:
        for leaf in leaves(arg):
            if isinstance(leaf, Expr):
                missing = symbols_of(leaf) & (tracer.sizes.env.unknown.keys() - tracer.graph.numbers)
                if missing or (tracer.graph.is_body and symbols_of(leaf) & tracer.sizes.env.unknown.keys()):
                    raise DataDependent(f"the size {leaf.text} depends on data, and no tensor has it")


def read_sizes(tracer: Tracer, names: list[str], results: list[AbstractTensor]) -> None:
    """The graph reads the new sizes off the results of its last node."""
    for name, tensor in zip(names, results, strict=True):
        if tensor.meta.is_static:
            continue
        for dim, size in enumerate(tensor.meta.shape):
            symbol = str(size)
            if symbol in tracer.sizes.env.unknown and symbol not in tracer.graph.numbers:
                read_size(tracer, name, dim, symbol)
