"""C++ expressions of the loop ops: a table from op to a function of (dtype of the operands, operand texts).

Every operand text is atomic (a name or a bracketed constant). Results have the local type of the result dtype.

Forms of ops of other vocabularies are registered in the group of entry points `stagefold.cpp`: by "namespace.name", a
function of the dtype and the texts. Half precision is computed in float, and rounded behind it.
"""

from __future__ import annotations

from codegen.cpp.types import c_type
from codegen.errors import UnknownOp, UnsupportedType
from stagewire.literals import FLOATS, INTEGERS
from stagewire.loop_ops import PREDICATES
from stagewire.stage import Table

FORMS = Table("stagefold.cpp", {})
EXACT = frozenset(
    """
    neg abs sign ceil floor round trunc maximum minimum fmax fmin copysign where fmod check_range
    """.split()  # noqa: SIM905
)  # on values that are already rounded to a 16-bit float these give such values again

_COMMON: dict[str, str] = {
    "where": "({0} ? {1} : {2})",
    "check_range": "{0}",  # the caller reports
    "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "({0} < {1})", "le": "({0} <= {1})", "gt": "({0} > {1})",
    "ge": "({0} >= {1})", "logical_not": "({0} == 0)", "logical_and": "(({0} != 0) & ({1} != 0))",
    "logical_or": "(({0} != 0) | ({1} != 0))", "logical_xor": "(({0} != 0) != ({1} != 0))",
}  # fmt: skip

_BOOL: dict[str, str] = _COMMON | {
    **dict.fromkeys(("add", "bitwise_or", "maximum", "fmax"), "({0} | {1})"),
    **dict.fromkeys(("mul", "bitwise_and", "minimum", "fmin"), "({0} & {1})"),
    **dict.fromkeys(("sub", "bitwise_xor"), "({0} != {1})"),
    **dict.fromkeys(("abs", "sign", "ceil", "floor", "round", "trunc", "trunc_div", "floor_div"), "{0}"),
    **dict.fromkeys(("isnan", "isinf", "signbit", "remainder", "fmod"), "false"),
    "bitwise_not": "(!{0})", "pow": "({0} | !{1})", "fma": "(({0} & {1}) | {2})",
}  # fmt: skip

_OURS_F32 = ("exp", "exp2", "lgamma", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf")
_LIBRARY = ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tan", "erfc")
_FLOAT: dict[str, str] = _COMMON | {
    **{op: f"{op}{{mark}}({{0}})" for op in (*_OURS_F32, *_LIBRARY)},  # with forms for vectors: prelude.h
    **{op: f"{op}{{mark}}({{0}}, {{1}})" for op in ("atan2", "hypot")},
    **{op: f"__builtin_{name}{{mark}}({{0}})" for op, name in (
        ("lgamma", "lgamma"), ("ceil", "ceil"), ("floor", "floor"), ("round", "rint"), ("trunc", "trunc"),
        ("abs", "fabs"), ("sqrt", "sqrt"))},
    **{op: f"sf_{{form}}{op}_{{suffix}}({{0}})" for op in ("sigmoid", "erfinv", "digamma")},
    **{op: f"sf_{{form}}{op}({{0}}, {{1}})" for op in (
        "nextafter", "floor_div", "remainder", "fmod", "maximum", "minimum", "fmax", "fmin")},
    "neg": "(-{0})", "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})",
    "fma": "(SF_HAS_FMA ? __builtin_fma{mark}({0}, {1}, {2}) : {0} * {1} + {2})",
    "copysign": "__builtin_copysign{mark}({0}, {1})",
    "sign": "({0} > 0 ? 1.0{mark} : {0} < 0 ? -1.0{mark} : 0.0{mark})",  # zero for nan and -0, as in torch
    "rsqrt": "(1.0{mark} / __builtin_sqrt{mark}({0}))", "reciprocal": "(1.0{mark} / {0})",
    "isnan": "({0} != {0})", "isinf": "(__builtin_fabs{mark}({0}) == __builtin_inf{mark}())",
    "trunc_div": "__builtin_trunc{mark}({0} / {1})",
}  # fmt: skip
_SINGLE: dict[str, str] = _FLOAT | {
    **{op: f"sf_{{form}}{op}_{{suffix}}({{0}})" for op in _OURS_F32},
    "signbit": "(SF_BITS(i32, {0}) < 0)",
}
_DOUBLE: dict[str, str] = _FLOAT | {"signbit": "(SF_BITS(i64, {0}) < 0)"}

_INTEGER: dict[str, str] = _COMMON | {
    **dict.fromkeys(("ceil", "floor", "round", "trunc"), "{0}"), **dict.fromkeys(("isnan", "isinf"), "false"),
    **dict.fromkeys(("maximum", "fmax"), "({0} > {1} ? {0} : {1})"),
    **dict.fromkeys(("minimum", "fmin"), "({0} < {1} ? {0} : {1})"),
    **dict.fromkeys(("trunc_div", "div"), "sf_trunc_div_{suffix}({0}, {1})"),
    "neg": "(-{0})", "abs": "({0} < 0 ? -{0} : {0})", "sign": "(({0} > 0) - ({0} < 0))", "signbit": "({0} < 0)",
    "bitwise_not": "(~{0})", "bitwise_and": "({0} & {1})", "bitwise_or": "({0} | {1})", "bitwise_xor": "({0} ^ {1})",
    "add": "({0} + {1})", "sub": "({0} - {1})",
    "mul": "((u64){0} * (u64){1})",  # unsigned short operands would promote to int and overflow
    "fma": "((u64){0} * (u64){1} + (u64){2})", "floor_div": "sf_floor_div_{suffix}({0}, {1})",
    "remainder": "sf_remainder_{suffix}({0}, {1})", "fmod": "sf_fmod_{suffix}({0}, {1})",
    "pow": "sf_pow_i64((i64){0}, (i64){1})",
    "shift_left": "((u64){1} < {bits}u ? (u64){0} << (u64){1} : 0)",
    "shift_right": "((u64){1} < {bits}u ? {0} >> (u64){1} : ({0} < 0 ? -1 : 0))",
}  # fmt: skip
_UNSIGNED: dict[str, str] = _INTEGER | {
    "abs": "{0}",
    "signbit": "false",
    "shift_right": "((u64){1} < {bits}u ? {0} >> (u64){1} : 0)",
}
_LONG: dict[str, str] = _UNSIGNED | {"floor_div": "sf_trunc_div_u64({0}, {1})", "fmod": "sf_remainder_u64({0}, {1})"}


Numbers = tuple[float | None, ...]
"""Of operands, what those are that are numbers."""


def expression(
    op: str, dtype: str, operands: tuple[str, ...], numbers: Numbers, form: str = "", rounds: bool = True
) -> str:
    """The value of `op` on operands of `dtype` (for "where": the dtype of the branches), by a form of its function.

    rounds: to the 16 bits of `dtype`, where it has these.
    """
    kind = c_type(dtype)
    rounding = kind.rounding if rounds else ""
    if "." in op:
        if op not in FORMS:
            raise UnknownOp(f"nobody registers a C++ form of the op {op!r}")
        text = str(FORMS[op](dtype, *operands))
        return f"{rounding}({text})" if rounding else text
    if dtype == "bool":
        if op not in _BOOL:
            raise UnsupportedType(f"the op {op!r} has no form on bool")
        return _BOOL[op].format(*operands)
    if dtype in FLOATS:
        text = _floating(op, "f" if kind.local == "f32" else "", kind.suffix, operands, numbers, form)
        return f"{rounding}({text})" if rounding and op not in EXACT and op not in PREDICATES else text
    patterns = _LONG if kind.suffix == "u64" else _UNSIGNED if dtype.startswith("u") else _INTEGER
    text = _filled(patterns, op, operands, "integers", suffix=kind.suffix, bits=INTEGERS[dtype][0])
    return text if op in _COMMON or op in PREDICATES else f"(({kind.local}){text})"


def _filled(patterns: dict[str, str], op: str, operands: tuple[str, ...], on: str, **names: object) -> str:
    if op not in patterns:
        raise UnknownOp(f"no C++ form of the op {op!r} on {on} with {len(operands)} operands")
    return patterns[op].format(*operands, **names)


def _floating(op: str, mark: str, suffix: str, operands: tuple[str, ...], numbers: Numbers, form: str) -> str:
    if op == "pow":
        return _power(mark, suffix, *operands, numbers[1])
    bounds = [number is not None and number == number for number in numbers]
    if op in ("maximum", "minimum") and any(bounds):
        value, bound = operands[::-1] if bounds[0] else operands
        # false for nan and for a zero of the other sign, which stay, as in eager's clamp and relu
        return f"({bound} {'>' if op == 'maximum' else '<'} {value} ? {bound} : {value})"
    return _filled(_SINGLE if mark else _DOUBLE, op, operands, suffix, mark=mark, suffix=suffix, form=form)


def _power(mark: str, suffix: str, a: str, b: str, exponent: float | None) -> str:
    """Constant exponents by products and by roots, which are others of -inf and of -0.0. (gcc's vectoriser forgets that
    and makes them of the function.)"""
    infinity = f"__builtin_inf{mark}()"
    root = f"__builtin_sqrt{mark}({a} == -{infinity} ? {infinity} : {a} + 0.0{mark})"
    special = {2.0: f"({a} * {a})", 3.0: f"({a} * {a} * {a})", 1.0: a, 0.5: root, -1.0: f"(1.0{mark} / {a})",
               -2.0: f"(1.0{mark} / ({a} * {a}))", -0.5: f"(1.0{mark} / {root})"}  # fmt: skip
    if exponent in special:
        return special[exponent]
    return f"sf_pow_f32({a}, {b})" if suffix == "f32" else f"pow({a}, {b})"


def conversion(source: str, target: str, operand: str, rounds: bool = True) -> str:
    """A cast by torch's rules: floats to integers truncate, anything but 0 is true. rounds: see `expression`."""
    to, kind = c_type(target), c_type(source)
    if source == target:
        return operand
    if target == "bool":
        return f"({operand} != 0)"
    if source == "bool":
        return f"({operand} ? ({to.local})1 : ({to.local})0)"  # gcc 12 does not vectorise the cast to a float
    if target in FLOATS:
        text = f"(({to.local}){operand})" if kind.local != to.local else operand
        return f"{to.rounding}({text})" if to.rounding and rounds else text
    if source in FLOATS and INTEGERS[target][0] < 64 and target != "int32":
        # through a wider signed type, as c10::convert does: narrow results wrap instead of being undefined
        return f"(({to.local})({'i64' if target in ('uint8', 'uint32') else 'i32'}){operand})"
    text = f"(({to.local}){operand})"
    return f"SF_WHOLE({text})" if source in FLOATS else text


def reinterpretation(source: str, target: str, operand: str) -> str:
    """The bits of a `source` value read as `target`, of the same item size."""
    if source == target:
        return operand
    start, end = c_type(source), c_type(target)
    bits = f"{start.store}({operand})" if start.store else operand
    if start.storage == end.storage:
        value = bits
    else:
        value = f"SF_BITS({end.storage}, ({start.storage}){bits})"
    if target == "bool":
        return f"({value} != 0)"
    return f"{end.load}({value})" if end.load else f"(({end.local}){value})"
