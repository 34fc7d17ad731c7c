"""C++ expressions of the loop ops: a table from op to a function of (dtype of the operands, operand texts).

Every operand text is atomic (a name or a bracketed constant). Results have the local type of the result dtype.
"""

from __future__ import annotations

from collections.abc import Callable

from codegen.cpp.literals import is_number
from codegen.cpp.types import BITS, c_type, is_floating
from codegen.errors import UnknownOp, UnsupportedType
from stagewire.loop_ops import PREDICATES

Emit = Callable[..., str]

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
EXACT = frozenset(
    """
    neg abs sign ceil floor round trunc maximum minimum fmax fmin copysign where fmod check_range
    """.split()  # noqa: SIM905
)  # on values that are already rounded to a 16-bit float these give such values again
_LIBRARY = {"asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tan", "erfc", "atan2", "hypot"}
_BUILTIN = {"lgamma", "copysign"}
_ROUNDINGS = {"ceil": "ceil", "floor": "floor", "round": "rint", "trunc": "trunc"}
_OURS_F32 = {"exp", "exp2", "lgamma", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf"}
_OURS = {"sigmoid", "erfinv", "digamma", "nextafter"}


def expression(op: str, dtype: str, operands: tuple[str, ...], form: str = "") -> str:
    """The value of `op` on operands of `dtype` (for "where": the dtype of the branches), by a form of its function."""
    if dtype == "bool":
        return _boolean(op, operands)
    if is_floating(dtype):
        text = _floating(op, "f" if c_type(dtype).local == "f32" else "", c_type(dtype).suffix, operands, form)
        rounding = c_type(dtype).rounding
        return f"{rounding}({text})" if rounding and op not in EXACT and op not in PREDICATES else text
    return _integral(op, dtype, operands)


def _common(op: str, operands: tuple[str, ...]) -> str | None:
    match op, operands:
        case ("where", (c, a, b)):
            return f"({c} ? {a} : {b})"
        case ("check_range", (a, _, _)):  # the caller reports
            return a
        case (_, (a, b)) if op in COMPARISONS:
            return f"({a} {COMPARISONS[op]} {b})"
        case ("logical_not", (a,)):
            return f"({a} == 0)"
        case ("logical_and", (a, b)):
            return f"(({a} != 0) & ({b} != 0))"
        case ("logical_or", (a, b)):
            return f"(({a} != 0) | ({b} != 0))"
        case ("logical_xor", (a, b)):
            return f"(({a} != 0) != ({b} != 0))"
    return None


def _boolean(op: str, operands: tuple[str, ...]) -> str:
    found = _common(op, operands)
    if found is not None:
        return found
    match op, operands:
        case (("add" | "bitwise_or" | "maximum" | "fmax"), (a, b)):
            return f"({a} | {b})"
        case (("mul" | "bitwise_and" | "minimum" | "fmin"), (a, b)):
            return f"({a} & {b})"
        case (("sub" | "bitwise_xor"), (a, b)):
            return f"({a} != {b})"
        case ("bitwise_not", (a,)):
            return f"(!{a})"
        case (("abs" | "sign" | "ceil" | "floor" | "round" | "trunc"), (a,)):
            return a
        case (("isnan" | "isinf" | "signbit"), _):
            return "false"
        case ("pow", (a, b)):
            return f"({a} | !{b})"
        case ("fma", (a, b, c)):
            return f"(({a} & {b}) | {c})"
        case ("trunc_div" | "floor_div", (a, _)):
            return a
        case ("remainder" | "fmod", _):
            return "false"
    raise UnsupportedType(f"the op {op!r} has no form on bool")


def _floating(op: str, mark: str, suffix: str, operands: tuple[str, ...], form: str = "") -> str:
    found = _common(op, operands)
    if found is not None:
        return found
    inner = ", ".join(operands)
    if op in _OURS or (op in _OURS_F32 and suffix == "f32"):
        return f"sf_{form}{op}_{suffix}({inner})"
    if op in _BUILTIN or op in _ROUNDINGS:
        return f"__builtin_{_ROUNDINGS.get(op, op)}{mark}({inner})"
    if op in _OURS_F32 or op in _LIBRARY:
        return f"{op}{mark}({inner})"  # the C library's, which may have forms for vectors (prelude.h)
    one = f"1.0{mark}"
    match op, operands:
        case ("neg", (a,)):
            return f"(-{a})"
        case ("abs", (a,)):
            return f"__builtin_fabs{mark}({a})"
        case ("sign", (a,)):
            return f"({a} > 0 ? {one} : {a} < 0 ? -{one} : 0.0{mark})"  # zero for nan and -0, as in torch
        case ("sqrt", (a,)):
            return f"__builtin_sqrt{mark}({a})"
        case ("rsqrt", (a,)):
            return f"({one} / __builtin_sqrt{mark}({a}))"
        case ("reciprocal", (a,)):
            return f"({one} / {a})"
        case ("isnan", (a,)):
            return f"({a} != {a})"
        case ("isinf", (a,)):
            return f"(__builtin_fabs{mark}({a}) == __builtin_inf{mark}())"
        case ("signbit", (a,)):
            return f"(SF_BITS({'i32' if mark else 'i64'}, {a}) < 0)"
        case ("add", (a, b)):
            return f"({a} + {b})"
        case ("sub", (a, b)):
            return f"({a} - {b})"
        case ("mul", (a, b)):
            return f"({a} * {b})"
        case ("div", (a, b)):
            return f"({a} / {b})"
        case ("trunc_div", (a, b)):
            return f"__builtin_trunc{mark}({a} / {b})"
        case (("maximum" | "minimum"), (a, b)) if is_number(a) or is_number(b):
            value, bound = (b, a) if is_number(a) else (a, b)
            # false for nan and for a zero of the other sign, which stay, as in eager's clamp and relu
            return f"({bound} {'>' if op == 'maximum' else '<'} {value} ? {bound} : {value})"
        case (("floor_div" | "remainder" | "fmod" | "maximum" | "minimum" | "fmax" | "fmin"), (a, b)):
            return f"sf_{form}{op}_{suffix}({a}, {b})"
        case ("pow", (a, b)):
            return _power(mark, suffix, a, b)
        case ("fma", (a, b, c)):
            return f"({a} * {b} + {c})"
    raise UnknownOp(f"no C++ form of the op {op!r} on {suffix} with {len(operands)} operands")


def _power(mark: str, suffix: str, a: str, b: str) -> str:
    """Constant exponents by products and by roots, which are others of -inf and of -0.0. (gcc's vectoriser forgets that
    and makes them of the function.)"""
    infinity = f"__builtin_inf{mark}()"
    root = f"__builtin_sqrt{mark}({a} == -{infinity} ? {infinity} : {a} + 0.0{mark})"
    special = {"2.0": f"({a} * {a})", "3.0": f"({a} * {a} * {a})", "1.0": a, "0.5": root,
               "(-1.0)": f"(1.0{mark} / {a})", "(-2.0)": f"(1.0{mark} / ({a} * {a}))",
               "(-0.5)": f"(1.0{mark} / {root})"}  # fmt: skip
    key = b.replace("f", "")
    if key in special:
        return special[key]
    return f"sf_pow_f32({a}, {b})" if suffix == "f32" else f"pow({a}, {b})"


def _integral(op: str, dtype: str, operands: tuple[str, ...]) -> str:
    found = _common(op, operands)
    if found is not None:
        return found
    kind = c_type(dtype)
    text = _integral_text(op, kind.suffix, BITS[dtype], dtype.startswith("u"), operands)
    return text if op in PREDICATES else f"(({kind.local}){text})"


def _integral_text(op: str, suffix: str, bits: int, unsigned: bool, operands: tuple[str, ...]) -> str:
    match op, operands:
        case ("neg", (a,)):
            return f"(-{a})"
        case ("abs", (a,)):
            return a if unsigned else f"({a} < 0 ? -{a} : {a})"
        case ("sign", (a,)):
            return f"(({a} > 0) - ({a} < 0))"
        case (("ceil" | "floor" | "round" | "trunc"), (a,)):
            return a
        case ("bitwise_not", (a,)):
            return f"(~{a})"
        case (("isnan" | "isinf"), _):
            return "false"
        case ("signbit", (a,)):
            return "false" if unsigned else f"({a} < 0)"
        case ("add", (a, b)):
            return f"({a} + {b})"
        case ("sub", (a, b)):
            return f"({a} - {b})"
        case ("mul", (a, b)):
            # unsigned short operands would promote to int and overflow
            return f"((u64){a} * (u64){b})"
        case (("trunc_div" | "div"), (a, b)):
            return f"sf_trunc_div_{suffix}({a}, {b})"
        case ("floor_div", (a, b)):
            return f"sf_{'trunc_div' if suffix == 'u64' else 'floor_div'}_{suffix}({a}, {b})"
        case ("remainder", (a, b)):
            return f"sf_remainder_{suffix}({a}, {b})"
        case ("fmod", (a, b)):
            return f"sf_{'remainder' if suffix == 'u64' else 'fmod'}_{suffix}({a}, {b})"
        case ("pow", (a, b)):
            return f"sf_pow_i64((i64){a}, (i64){b})"
        case (("maximum" | "fmax"), (a, b)):
            return f"({a} > {b} ? {a} : {b})"
        case (("minimum" | "fmin"), (a, b)):
            return f"({a} < {b} ? {a} : {b})"
        case ("bitwise_and", (a, b)):
            return f"({a} & {b})"
        case ("bitwise_or", (a, b)):
            return f"({a} | {b})"
        case ("bitwise_xor", (a, b)):
            return f"({a} ^ {b})"
        case ("shift_left", (a, b)):
            return f"((u64){b} < {bits}u ? (u64){a} << (u64){b} : 0)"
        case ("shift_right", (a, b)):
            beyond = "0" if unsigned else f"({a} < 0 ? -1 : 0)"
            return f"((u64){b} < {bits}u ? {a} >> (u64){b} : {beyond})"
        case ("fma", (a, b, c)):
            return f"((u64){a} * (u64){b} + (u64){c})"
    raise UnknownOp(f"no C++ form of the op {op!r} on integers with {len(operands)} operands")


def conversion(source: str, target: str, operand: str) -> str:
    """A cast by torch's rules: floats to integers truncate, anything but 0 is true."""
    to, kind = c_type(target), c_type(source)
    if source == target:
        return operand
    if target == "bool":
        return f"({operand} != 0)"
    if source == "bool":
        return f"({operand} ? ({to.local})1 : ({to.local})0)"  # gcc 12 does not vectorise the cast to a float
    if is_floating(target):
        text = f"(({to.local}){operand})" if kind.local != to.local else operand
        return f"{to.rounding}({text})" if to.rounding else text
    if is_floating(source) and BITS[target] < 64 and target != "int32":
        # through a wider signed type, as c10::convert does: narrow results wrap instead of being undefined
        return f"(({to.local})({'i64' if target in ('uint8', 'uint32') else 'i32'}){operand})"
    return f"(({to.local}){operand})"


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
