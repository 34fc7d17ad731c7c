"""The loop ops: what a `Compute` statement may do at one point; the vocabulary `loop`.

An op takes scalars, given as types of no dimension, and gives one. Integer arithmetic wraps; float arithmetic rounds to
the statement's dtype (bfloat16 and float16 compute in float32 and round once). How it is computed and how it is
written in a language stand in tables of those who ask, by its name.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from stagewire.errors import UnknownOp
from stagewire.loop import Compute
from stagewire.types import DTYPES, TensorType
from stagewire.vocabulary import Constraint, Op, Parameter, Rule, Vocabulary, find, of_dtypes, register

FLOATS = frozenset(name for name in DTYPES if "float" in name)
INTEGERS = frozenset(name for name in DTYPES if "int" in name)
NUMBERS = FLOATS | INTEGERS
INTEGRAL = INTEGERS | {"bool"}
ANY = NUMBERS | {"bool"}

CONVENTION = (
    "A `Compute` statement names its op and gives operands in the order of the parameters: values of the kernel, or "
    "literals, which take the dtype of the values beside them. A dtype is the one that the statement states."
)
FAMILIES = {
    "unary": "One operand; the result has its dtype.",
    "predicates": "One operand; the result is bool.",
    "binary": "Two operands of one dtype; the result has it.",
    "comparisons": "Two operands of one dtype; the result is bool.",
    "bits": "Of integers, and of bool as of one bit.",
    "ternary": "Three operands.",
    "casts": "To the dtype that the statement states.",
    "checks": "The first operand, once a condition on it holds. A violation is reported as an IndexError (of "
    "check_range: a RuntimeError), or the index clamped where a code generator cannot report.",
    "random": "Numbers drawn by position.",
}

# By family: name, number of operands, dtypes of these, meaning.
_ROWS: dict[str, tuple[tuple[str, int, frozenset[str], str], ...]] = {
    "unary": (
        ("neg", 1, NUMBERS, "-a; integers wrap"),
        ("abs", 1, ANY, "|a|; the least integer is its own"),
        ("sign", 1, ANY, "-1, 0 or 1 by the sign of a; 0 for nan"),
        ("ceil", 1, ANY, "least integer >= a"),
        ("floor", 1, ANY, "greatest integer <= a"),
        ("round", 1, ANY, "to the nearest integer, halves to even"),
        ("trunc", 1, ANY, "towards zero"),
        ("exp", 1, FLOATS, "e**a"),
        ("exp2", 1, FLOATS, "2**a"),
        ("expm1", 1, FLOATS, "e**a - 1 without cancellation"),
        ("log", 1, FLOATS, "natural logarithm"),
        ("log2", 1, FLOATS, "binary logarithm"),
        ("log10", 1, FLOATS, "decimal logarithm"),
        ("log1p", 1, FLOATS, "log(1 + a) without cancellation"),
        ("sqrt", 1, FLOATS, "square root, correctly rounded"),
        ("rsqrt", 1, FLOATS, "1 / sqrt(a)"),
        ("reciprocal", 1, FLOATS, "1 / a, correctly rounded"),
        ("sin", 1, FLOATS, "sine of a in radians"),
        ("cos", 1, FLOATS, "cosine of a in radians"),
        ("tan", 1, FLOATS, "tangent of a in radians"),
        ("asin", 1, FLOATS, "arc sine"),
        ("acos", 1, FLOATS, "arc cosine"),
        ("atan", 1, FLOATS, "arc tangent"),
        ("sinh", 1, FLOATS, "hyperbolic sine"),
        ("cosh", 1, FLOATS, "hyperbolic cosine"),
        ("tanh", 1, FLOATS, "hyperbolic tangent"),
        ("asinh", 1, FLOATS, "inverse hyperbolic sine"),
        ("acosh", 1, FLOATS, "inverse hyperbolic cosine"),
        ("atanh", 1, FLOATS, "inverse hyperbolic tangent"),
        ("erf", 1, FLOATS, "error function"),
        ("erfc", 1, FLOATS, "1 - erf(a) without cancellation"),
        ("erfinv", 1, FLOATS, "inverse error function"),
        ("lgamma", 1, FLOATS, "log |gamma(a)|"),
        ("digamma", 1, FLOATS, "derivative of lgamma"),
        ("sigmoid", 1, FLOATS, "1 / (1 + exp(-a))"),
    ),
    "predicates": (
        ("isnan", 1, ANY, "a is nan"),
        ("isinf", 1, ANY, "a is inf or -inf"),
        ("signbit", 1, ANY, "sign bit of a (true for -0.0)"),
        ("logical_not", 1, ANY, "a == 0"),
    ),
    "binary": (
        ("add", 2, ANY, "a + b; integers wrap; on bool: or"),
        ("sub", 2, ANY, "a - b; integers wrap"),
        ("mul", 2, ANY, "a * b; integers wrap; on bool: and"),
        ("div", 2, FLOATS, "a / b on floats"),
        ("floor_div", 2, NUMBERS, "floor of a / b (Python's //), as torch computes it; an integer b of 0 is an error"),
        ("trunc_div", 2, NUMBERS, "a / b rounded towards zero; an integer b of 0 is an error"),
        ("remainder", 2, NUMBERS, "a - b * floor(a / b): the sign of b (Python's %)"),
        ("fmod", 2, NUMBERS, "a - b * trunc(a / b): the sign of a (C's fmod)"),
        ("pow", 2, ANY, "a ** b; of integers repeated multiplication, 1 / a truncated where b < 0"),
        ("atan2", 2, FLOATS, "angle of the point (b, a) in radians"),
        ("hypot", 2, FLOATS, "sqrt(a*a + b*b) without overflow"),
        ("copysign", 2, FLOATS, "|a| with the sign of b"),
        ("nextafter", 2, FLOATS, "next float after a towards b"),
        ("maximum", 2, ANY, "the larger; nan if either is nan"),
        ("minimum", 2, ANY, "the smaller; nan if either is nan"),
        ("fmax", 2, ANY, "the larger; the other if one is nan"),
        ("fmin", 2, ANY, "the smaller; the other if one is nan"),
    ),
    "comparisons": (
        ("eq", 2, ANY, "a == b"),
        ("ne", 2, ANY, "a != b"),
        ("lt", 2, ANY, "a < b"),
        ("le", 2, ANY, "a <= b"),
        ("gt", 2, ANY, "a > b"),
        ("ge", 2, ANY, "a >= b"),
        ("logical_and", 2, ANY, "a != 0 and b != 0"),
        ("logical_or", 2, ANY, "a != 0 or b != 0"),
        ("logical_xor", 2, ANY, "(a != 0) != (b != 0)"),
    ),
    "bits": (
        ("bitwise_not", 1, INTEGRAL, "complement of each bit; on bool: not a"),
        ("bitwise_and", 2, INTEGRAL, "and of each bit"),
        ("bitwise_or", 2, INTEGRAL, "or of each bit"),
        ("bitwise_xor", 2, INTEGRAL, "exclusive or of each bit"),
        ("shift_left", 2, INTEGERS, "a << b; 0 where b is negative or not below the width"),
        ("shift_right", 2, INTEGERS, "a >> b (arithmetic); 0 or -1 where b is negative or not below the width"),
    ),
    "ternary": (
        ("where", 3, ANY, "b if a else c; a is bool, b and c have the result's dtype"),
        ("fma", 3, ANY, "a * b + c, rounded once where the machine can"),
    ),
    "casts": (
        ("convert", 1, ANY, "a in the statement's dtype; of a literal: a typed constant. float to int truncates"),
        ("bitcast", 1, ANY, "the bits of a read as the statement's dtype (same item size)"),
    ),
    "checks": (
        ("check_index", 2, INTEGERS, "a; b is the size. 0 <= a < b must hold"),
        ("wrap_index", 2, INTEGERS, "a + b where a is negative, else a; -b <= a < b must hold, as for check_index"),
        ("check_range", 3, ANY, "a; b <= a <= c must hold, which it does not for nan"),
    ),
    "random": (
        ("philox", 5, INTEGERS, "the float32 in (0, 1] that element c draws from Philox4x32-10 with key a from offset "
         "b on, where d threads share the elements, each taking e of them that lie together"),
    ),
}  # fmt: skip

PREDICATES = frozenset(row[0] for family in ("predicates", "comparisons") for row in _ROWS[family])
"""Ops whose result is a bool, of whatever their operands are."""
TYPED = frozenset(row[0] for family in ("casts", "random") for row in _ROWS[family])
"""Ops whose result has the dtype that the statement states, which is the last of their arguments."""
CHECKS = frozenset(row[0] for row in _ROWS["checks"])
"""Ops that raise because of their operands alone."""
INDEX_CHECKS = frozenset(("check_index", "wrap_index"))
"""Ops that give an index inside of a dimension, or raise."""
DIVISIONS = frozenset(("floor_div", "trunc_div", "remainder", "fmod"))
"""Ops that raise on integers where the second operand is 0."""
COMMUTATIVE = frozenset(
    "add mul maximum minimum fmax fmin eq ne logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor".split()  # noqa: E501, SIM905
)

COSTS: dict[str, tuple[int, int]] = {
    "sign": (2, 2), "check_index": (2, 2), "wrap_index": (2, 2), "sqrt": (4, 20), "reciprocal": (4, 10), "div": (4, 8),
    "nextafter": (4, 4), "rsqrt": (5, 5), "trunc_div": (6, 6), "floor_div": (8, 8), "remainder": (8, 8),
    "hypot": (8, 8), "exp": (10, 6), "exp2": (10, 2), "log": (10, 26), "log2": (10, 26), "log10": (10, 26),
    "fmod": (10, 10), "tanh": (12, 24), "sigmoid": (12, 9), "expm1": (14, 20), "log1p": (14, 30), "sin": (15, 30),
    "cos": (15, 30), "asin": (15, 15), "acos": (15, 15), "atan": (15, 15), "sinh": (15, 15), "cosh": (15, 15),
    "erf": (15, 28), "tan": (20, 60), "asinh": (20, 20), "acosh": (20, 20), "atanh": (20, 20), "erfc": (20, 20),
    "atan2": (20, 20), "philox": (20, 20), "erfinv": (25, 25), "pow": (25, 80), "lgamma": (40, 40),
    "digamma": (40, 40),
}  # fmt: skip
"""Rough instructions an element of the ops that take more than one: of a CPU's vectors, of a GPU (sm_90) in float32."""


def cost(op: str, on_gpu: bool = False) -> int:
    """Rough instructions that an op takes for an element."""
    return COSTS.get(op, (1, 1))[on_gpu]


@cache
def scalar(dtype: str) -> TensorType:
    """The type of a value of a kernel."""
    return TensorType(dtype, (), ())  # type: ignore[arg-type]


def _values(operands: tuple[Any, ...]) -> list[TensorType]:
    return [operand for operand in operands if isinstance(operand, TensorType)]


def _one_dtype(*operands: Any) -> str | None:
    dtypes = {value.dtype for value in _values(operands)}
    return f"dtypes differ: {', '.join(sorted(dtypes))}" if len(dtypes) > 1 else None


def _condition(condition: Any, *chosen: Any) -> str | None:
    wrong = isinstance(condition, TensorType) and condition.dtype != "bool"
    return f"the condition is {condition.dtype}" if wrong else None


_F, _D, _I, _B, _C = map(scalar, ("float32", "float64", "int64", "bool", "complex64"))
S1 = Constraint("S1", "All operands have one dtype.", _one_dtype, ("add", (_F, _D)))
S2 = Constraint("S2", "The condition is bool, the others have one dtype.",
                lambda c, *chosen: _condition(c) or _one_dtype(*chosen), ("where", (_I, _F, _F)))  # fmt: skip
_TAKEN = {
    FLOATS: of_dtypes("S3", FLOATS, "Operands are floats.", ("exp", (_I,))),
    NUMBERS: of_dtypes("S4", NUMBERS, "Operands are integers or floats.", ("neg", (_B,))),
    INTEGRAL: of_dtypes("S5", INTEGRAL, "Operands are integers or bool.", ("bitwise_and", (_F, _F))),
    INTEGERS: of_dtypes("S6", INTEGERS, "Operands are integers.", ("shift_left", (_B, _B))),
    ANY: of_dtypes("S7", ANY, "Operands are integers, floats or bool.", ("eq", (_C, _C))),
}


def _of_operands(*operands: Any) -> tuple[TensorType, ...]:
    """The dtype of the values; nothing where all operands are literals, whose dtype the statement states."""
    return tuple(_values(operands)[-1:])


def _op(family: str, name: str, count: int, dtypes: frozenset[str], doc: str) -> Op:
    rule: Rule = _of_operands
    parameters = tuple([Parameter(letter, "operand") for letter in "abcde"[:count]])
    kind = "f32" if dtypes & FLOATS else "i64"
    kinds, result, last = [kind] * count, kind, ""
    if name in TYPED:
        rule = lambda *arguments: (scalar(arguments[-1]),)  # noqa: E731
        parameters += (Parameter("dtype", "dtype"),)
        result, last = "f32", ", dtype(float32)"
    elif name in PREDICATES:
        rule, result = (lambda *operands: (scalar("bool"),)), "b8"
    elif name == "where":
        kinds[0], rule = "b8", lambda condition, *chosen: _of_operands(*chosen)
    example = ", ".join(f"{p.name}: {k}[]" for p, k in zip(parameters, kinds, strict=False))
    constraints = (S2 if name == "where" else S1, _TAKEN[dtypes])
    return Op(name, family, parameters, doc, rule, constraints, f"{name}({example}{last}) -> {result}[]")


OPS = {row[0]: _op(family, *row) for family, rows in _ROWS.items() for row in rows}

VOCABULARY = register(Vocabulary("loop", 1, OPS, FAMILIES, CONVENTION))


def loop_op(name: str) -> Op:
    """The op of a computation: of this vocabulary, or by "namespace.name" a prim of another, which then computes each
    point of its own. Raises `UnknownOp` for a name that is none."""
    op = find(name) if "." in name else VOCABULARY.op(name)
    if op is None:
        raise UnknownOp(f"no vocabulary has a loop op {name!r}")
    return op


def arity(op: str) -> int:
    """How many operands a computation by `op` has; raises `UnknownOp` for a name that is none."""
    return len(loop_op(op).parameters) - (op in TYPED)


def may_raise(statement: object) -> bool:
    """Whether a statement may raise: an index or a value out of range, a division of integers by zero."""
    if not isinstance(statement, Compute):
        return False
    if statement.op in DIVISIONS and statement.dtype in INTEGERS:
        return not isinstance(statement.operands[1], int) or statement.operands[1] == 0
    return statement.op in CHECKS
