"""Foreach ops: the op on each tensor of a list, by the decomposition of its single form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.operands import Function, Table
from primops.decompositions.shape import window
from primops.errors import Decline
from primops.prims.layouts import FLOATS

UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div")
CLAMPS = {"maximum": "clamp_min", "clamp_min": "clamp_min", "minimum": "clamp_max", "clamp_max": "clamp_max"}
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
    numbers = ("Scalar", "ScalarList")
    singles = {
        **{f"{name}.default": f"{name}.default" for name in (*UNARY, "max")},
        **{f"{name}.{o}": f"{name}.Tensor" for name in BINARY for o in ("List", "Tensor", *numbers)},
        **{f"{name}.List": f"{single}.Tensor" for name, single in CLAMPS.items()},
        **{f"{name}.{o}": f"{single}.default" for name, single in CLAMPS.items() for o in numbers},
        "lerp.List": "lerp.Tensor",
        "lerp.Scalar": "lerp.Scalar",
        "pow.List": "pow.Tensor_Tensor",
        **{f"pow.{o}": "pow.Tensor_Scalar" for o in numbers},
    }
    del singles["sub.Tensor"]  # which ATen does not have
    made = {f"aten._foreach_{name}": _each(table[f"aten.{single}"]) for name, single in singles.items()}
    for name, prim in TERNARY.items():
        single = _each(_with_value(table[f"aten.{name}.default"]))
        made |= {f"aten._foreach_{name}.{o}": single for o in numbers}
        made[f"aten._foreach_{name}.Tensor"] = _with_numbers(prim)
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


def _with_value(single: Function) -> Function:
    return lambda p, x, a, b, value=1: single(p, x, a, b, value=value)
