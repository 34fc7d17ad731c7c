"""The loop ops: what a `Compute` statement may do at one point.

An op takes scalars and gives one scalar. All tensor operands have one dtype (that of the result for "same" ops);
literals take that dtype. `result`:
    same   the dtype of the operands      bool   bool      given   the statement's own dtype (casts)
`cost` is a rough count of vector instructions per element, used by the passes and free for code generators to use.
Integer arithmetic wraps; float arithmetic rounds to the statement's dtype (bfloat16 and float16 compute in float32
and round once).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from loopir.errors import UnknownOp

ResultRule = Literal["same", "bool", "given"]


class LoopOp(NamedTuple):
    """One row of the table."""

    name: str
    arity: int
    result: ResultRule
    cost: int
    meaning: str


def _table(*rows: tuple[str, int, ResultRule, int, str]) -> dict[str, LoopOp]:
    return {row[0]: LoopOp(*row) for row in rows}


OPS: dict[str, LoopOp] = _table(
    # unary arithmetic
    ("neg", 1, "same", 1, "-a"),
    ("abs", 1, "same", 1, "|a|"),
    ("sign", 1, "same", 2, "-1, 0 or 1 by the sign of a; 0 for nan"),
    ("ceil", 1, "same", 1, "least integer >= a"),
    ("floor", 1, "same", 1, "greatest integer <= a"),
    ("round", 1, "same", 1, "to the nearest integer, halves to even"),
    ("trunc", 1, "same", 1, "towards zero"),
    ("exp", 1, "same", 10, "e**a"),
    ("exp2", 1, "same", 10, "2**a"),
    ("expm1", 1, "same", 14, "e**a - 1 without cancellation"),
    ("log", 1, "same", 10, "natural logarithm"),
    ("log2", 1, "same", 10, "binary logarithm"),
    ("log10", 1, "same", 10, "decimal logarithm"),
    ("log1p", 1, "same", 14, "log(1 + a) without cancellation"),
    ("sqrt", 1, "same", 4, "square root, correctly rounded"),
    ("rsqrt", 1, "same", 5, "1 / sqrt(a)"),
    ("reciprocal", 1, "same", 4, "1 / a"),
    ("sin", 1, "same", 15, "sine"),
    ("cos", 1, "same", 15, "cosine"),
    ("tan", 1, "same", 20, "tangent"),
    ("asin", 1, "same", 15, "arc sine"),
    ("acos", 1, "same", 15, "arc cosine"),
    ("atan", 1, "same", 15, "arc tangent"),
    ("sinh", 1, "same", 15, "hyperbolic sine"),
    ("cosh", 1, "same", 15, "hyperbolic cosine"),
    ("tanh", 1, "same", 12, "hyperbolic tangent"),
    ("asinh", 1, "same", 20, "inverse hyperbolic sine"),
    ("acosh", 1, "same", 20, "inverse hyperbolic cosine"),
    ("atanh", 1, "same", 20, "inverse hyperbolic tangent"),
    ("erf", 1, "same", 15, "error function"),
    ("erfc", 1, "same", 20, "1 - erf(a) without cancellation"),
    ("erfinv", 1, "same", 25, "inverse error function"),
    ("lgamma", 1, "same", 40, "log |gamma(a)|"),
    ("digamma", 1, "same", 40, "derivative of lgamma"),
    ("sigmoid", 1, "same", 12, "1 / (1 + exp(-a))"),
    ("bitwise_not", 1, "same", 1, "complement of each bit; on bool: not a"),
    # unary predicates
    ("isnan", 1, "bool", 1, "a is nan"),
    ("isinf", 1, "bool", 1, "a is inf or -inf"),
    ("signbit", 1, "bool", 1, "sign bit of a (true for -0.0)"),
    ("logical_not", 1, "bool", 1, "a == 0"),
    # binary arithmetic
    ("add", 2, "same", 1, "a + b; on bool: or"),
    ("sub", 2, "same", 1, "a - b"),
    ("mul", 2, "same", 1, "a * b; on bool: and"),
    ("div", 2, "same", 4, "a / b on floats"),
    ("floor_div", 2, "same", 6, "Python's a // b, as torch computes it"),
    ("trunc_div", 2, "same", 6, "a / b towards zero"),
    ("remainder", 2, "same", 8, "Python's a % b: the sign of b"),
    ("fmod", 2, "same", 10, "C's fmod: the sign of a"),
    ("pow", 2, "same", 25, "a ** b"),
    ("atan2", 2, "same", 20, "angle of the point (b, a)"),
    ("hypot", 2, "same", 8, "sqrt(a*a + b*b) without overflow"),
    ("copysign", 2, "same", 1, "|a| with the sign of b"),
    ("nextafter", 2, "same", 4, "next float after a towards b"),
    ("maximum", 2, "same", 1, "the larger; nan if either is nan"),
    ("minimum", 2, "same", 1, "the smaller; nan if either is nan"),
    ("fmax", 2, "same", 1, "the larger; the other if one is nan"),
    ("fmin", 2, "same", 1, "the smaller; the other if one is nan"),
    # comparisons and logic
    ("eq", 2, "bool", 1, "a == b"),
    ("ne", 2, "bool", 1, "a != b"),
    ("lt", 2, "bool", 1, "a < b"),
    ("le", 2, "bool", 1, "a <= b"),
    ("gt", 2, "bool", 1, "a > b"),
    ("ge", 2, "bool", 1, "a >= b"),
    ("logical_and", 2, "bool", 1, "a != 0 and b != 0"),
    ("logical_or", 2, "bool", 1, "a != 0 or b != 0"),
    ("logical_xor", 2, "bool", 1, "(a != 0) != (b != 0)"),
    ("bitwise_and", 2, "same", 1, "and of each bit"),
    ("bitwise_or", 2, "same", 1, "or of each bit"),
    ("bitwise_xor", 2, "same", 1, "exclusive or of each bit"),
    ("shift_left", 2, "same", 1, "a << b; 0 where b is negative or not below the width"),
    ("shift_right", 2, "same", 1, "a >> b (arithmetic); 0 or -1 where b is negative or not below the width"),
    # ternary
    ("where", 3, "same", 1, "b if a else c; a is bool, b and c have the result's dtype"),
    ("fma", 3, "same", 1, "a * b + c (one rounding or two)"),
    ("check_range", 3, "same", 1, "a; b <= a <= c must hold (not for nan): code generators report a violation as a "
     "RuntimeError where they can"),
    # casts
    ("convert", 1, "given", 1, "a in the statement's dtype; of a literal: a typed constant. float to int truncates"),
    ("bitcast", 1, "given", 1, "the bits of a read as the statement's dtype (same item size)"),
    # indices
    ("check_index", 2, "same", 2, "a; b is the size (int). 0 <= a < b must hold: code generators report a violation "
     "as an IndexError, or clamp where they cannot report"),
    ("wrap_index", 2, "same", 2, "a + b where a is negative, else a; -b <= a < b must hold, as for check_index"),
    # random numbers
    ("philox", 5, "given", 20, "the float32 in (0, 1] that element c draws from Philox4x32-10 with key a from offset b "
     "on, where d threads share the elements, each taking e of them that lie together (e 1: see `loopir.philox`)"),
)  # fmt: skip

INDEX_CHECKS: frozenset[str] = frozenset(["check_index", "wrap_index"])
"""Ops that give an index inside of a dimension, or raise."""
CHECKS: frozenset[str] = INDEX_CHECKS | {"check_range"}
"""Ops that raise because of their operands alone."""

COMMUTATIVE: frozenset[str] = frozenset(
    [
        "add",
        "mul",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "eq",
        "ne",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
    ]
)


def loop_op(name: str) -> LoopOp:
    """The row of `name`; an unknown name is an `UnknownOp` that lists the known ones."""
    found = OPS.get(name)
    if found is None:
        raise UnknownOp(f"no loop op {name!r}; known: {' '.join(OPS)}")
    return found
