"""Foreach ops: the op on each tensor of a list, by the decomposition of its single form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absint.rules.foreach import SINGLES
from absint.signatures import full_name
from primops.builder import Builder, Value
from primops.decompositions.operands import Function, Table
from primops.decompositions.shape import window
from primops.errors import Decline
from primops.prims.layouts import FLOATS

TERNARY = {"addcmul": "mul", "addcdiv": "div"}
"""The prim that joins the two tensors, of which the first is scaled."""


def _each(single: Function) -> Function:
    """Lists of tensors and of numbers are taken apart, everything else goes to each call."""

    def decomposition(p: Builder, tensors: tuple[Value, ...], *others: Any, **keywords: Any) -> tuple[Value, ...]:
        results = p.results
        if len({value.device for value in tensors}) > 1:
            raise Decline("several devices")
        made = []
        try:
            for position, x in enumerate(tensors):
                p.results = (results[position],)
                own = [other[position] if isinstance(other, tuple) else other for other in others]
                made.append(single(p, x, *own, **keywords))
        finally:
            p.results = results
        return tuple(made)

    return decomposition


def foreach_table(table: Mapping[str, Function]) -> Table:
    """The foreach ops over the single ops of `table`."""
    made = {full_name(name): _each(table[full_name(single)]) for name, single in SINGLES.items()}
    made |= {f"aten._foreach_{name}.Tensor": _with_numbers(prim) for name, prim in TERNARY.items()}
    norm = table["aten.linalg_vector_norm.default"]
    made["aten._foreach_norm.Scalar"] = _each(lambda p, x, ord=2, dtype=None: norm(p, x, ord))
    return made


def _with_numbers(prim: str) -> Function:
    """x + number * a (* or /) b, the numbers in one tensor: each of them is rounded to where eager computes."""

    def decomposition(
        p: Builder, tensors: tuple[Value, ...], first: Any, second: Any, numbers: Value
    ) -> tuple[Value, ...]:
        if numbers.rank != 1 or numbers.dtype not in FLOATS:
            raise Decline("the numbers are no vector of floats")

        def one(p: Builder, x: Value, a: Value, b: Value, position: int) -> Value:
            number = p.to_device(p.reshape(window(p, numbers, 0, position, position + 1), ()), x.device)

            def compute(p: Builder, x: Value, a: Value, b: Value) -> Value:
                factor = p.broadcast(p.convert(number, x.dtype), x.shape)
                return p.add(x, getattr(p, prim)(p.mul(a, factor), b))

            return p.pointwise(compute, x, a, b)

        if any(numbers.device not in ("cpu", value.device) or value.dtype not in FLOATS for value in tensors):
            raise Decline("numbers on another GPU, or for integers")
        return _each(one)(p, tensors, first, second, tuple(range(len(tensors))))

    return decomposition
