"""Sizes that data decides, in torch calls: which of them the graph has read, and which results give new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from absint import AbstractTensor
from absint.errors import DimensionError, TypeRuleError
from absint.symbolic import dim_of
from absint.symbolic.size import make_size
from bytecap.context_types import Tracer
from bytecap.errors import DataDependent
from bytecap.objects.numbers.unbacked import DataCondition, read_size
from stagewire.capture import Relation
from stagewire.expr import Expr, symbols_of
from stagewire.graph import Arg, leaves
from stagewire.polynomial import Polynomial


def has_unbacked(given: Any) -> bool:
    """Whether an argument of a torch call has a number in it that data decides."""
    match given:
        case torch.SymInt() | torch.SymFloat():
            return given.node.is_unbacked  # type: ignore[union-attr]
        case AbstractTensor():
            return not given.meta.is_static and has_unbacked((*given.meta.shape, *given.meta.stride))
        case tuple() | list():
            return any(map(has_unbacked, given))
        case slice():
            return has_unbacked((given.start, given.stop, given.step))
        case dict():
            return any(map(has_unbacked, given.values()))
    return False


def refuse_unread(tracer: Tracer, args: Iterable[Arg]) -> None:
    """A call is given no size that no tensor of the graph has."""
    for arg in args:
        for leaf in leaves(arg):
            if isinstance(leaf, Expr):
                missing = symbols_of(leaf) & (tracer.sizes.env.unbacked.keys() - tracer.graph.numbers)
                if missing or (tracer.graph.is_body and symbols_of(leaf) & tracer.sizes.env.unbacked.keys()):
                    raise DataDependent(f"the size {leaf.text} depends on data, and no tensor has it")


def read_sizes(tracer: Tracer, names: list[str], results: list[AbstractTensor]) -> None:
    """The graph reads the new sizes off the results of its last node."""
    for name, tensor in zip(names, results, strict=True):
        if tensor.meta.is_static:
            continue
        for dim, size in enumerate(tensor.meta.shape):
            symbol = str(size)
            if symbol in tracer.sizes.env.unbacked and symbol not in tracer.graph.numbers:
                read_size(tracer, name, dim, symbol)


# So many equalities one call may need.
_MOST = 4


def with_equal_sizes(tracer: Tracer, call: Callable[[], Any]) -> Any:
    """What `call` gives, with sizes that it needs to be equal taken for that.

    Errors: those of `call`, where nothing that could be assumed would help.
    """
    env = tracer.sizes.env
    for _ in range(_MOST):
        env.taken_for_different.clear()
        try:
            return call()
        except DimensionError:
            raise
        except TypeRuleError:
            gap = next((gap for gap in reversed(env.taken_for_different) if not _is_about_ones(gap)), None)
            if gap is None or not _assume_zero(tracer, gap):
                raise
    return call()


def _is_about_ones(gap: Polynomial) -> bool:
    """Whether it is asked of one size whether it is 0 or 1, as broadcasting does."""
    return len(gap.symbols) == 1 and abs(gap.offset) < 2 and len(gap.terms) <= 1 + bool(gap.offset)


def _assume_zero(tracer: Tracer, gap: Polynomial) -> bool:
    generic = tracer.sizes.env.generic
    tracer.sizes.env.generic = False
    try:
        size = make_size(tracer.sizes.env, gap)
        return tracer.checks.assume(tracer, DataCondition(Relation(dim_of(size), "==", 0), size), True)
    finally:
        tracer.sizes.env.generic = generic
