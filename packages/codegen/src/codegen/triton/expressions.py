"""The text of one loop op in Triton's language.

Operands arrive as Triton values of the statement's operand dtype. float16 and bfloat16 compute in float32 and round
once. Ops that Triton's own language lacks go to libdevice (which Triton's interpreter cannot run) or to the helpers of
`prelude.py`. Forms of ops of other vocabularies are registered in the group of entry points `stagefold.triton`: by
"namespace.name", a function of the dtype (never a narrow float) and the texts.
"""

from __future__ import annotations

from codegen.errors import UnsupportedKernel
from stagewire.literals import FLOATS, HALVES
from stagewire.stage import Table

FORMS = Table("stagefold.triton", {})
TYPES: dict[str, str] = {
    "float32": "tl.float32", "float64": "tl.float64", "float16": "tl.float16", "bfloat16": "tl.bfloat16",
    "int64": "tl.int64", "int32": "tl.int32", "int16": "tl.int16", "int8": "tl.int8", "uint8": "tl.uint8",
    "uint16": "tl.uint16", "uint32": "tl.uint32", "uint64": "tl.uint64", "bool": "tl.int1",
    "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5",
}  # fmt: skip
POINTER: dict[str, str] = {
    "float32": "*fp32", "float64": "*fp64", "float16": "*fp16", "bfloat16": "*bf16", "int64": "*i64",
    "int32": "*i32", "int16": "*i16", "int8": "*i8", "uint8": "*u8", "uint16": "*u16", "uint32": "*u32",
    "uint64": "*u64", "bool": "*i1", "float8_e4m3fn": "*fp8e4nv", "float8_e5m2": "*fp8e5",
}  # fmt: skip

_ANY: dict[str, str] = {
    "neg": "-{0}", "abs": "tl.abs({0})", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
    "ge": "{0} >= {1}", "where": "tl.where({0}, {1}, {2})", "fma": "{0} * {1} + {2}",
    "logical_not": "{0} == 0", "logical_and": "({0} != 0) & ({1} != 0)", "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) != ({1} != 0)",
    "check_range": "{0}",  # what is out of range cannot be reported
    "sign": "({0} > 0).to({type}) - ({0} < 0).to({type})",
    "maximum": "maximum({0}, {1})", "minimum": "minimum({0}, {1})",
    "fmax": "tl.where({0} != {0}, {1}, tl.where({0} < {1}, {1}, {0}))",
    "fmin": "tl.where({0} != {0}, {1}, tl.where({1} < {0}, {1}, {0}))",
}  # fmt: skip

_FLOAT: dict[str, str] = {
    "ceil": "tl.ceil({0})", "floor": "tl.floor({0})", "round": "round_half_even({0})",
    "trunc": "tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))",
    "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "sqrt": "square_root({0})",
    "rsqrt": "inverse_root({0})", "reciprocal": "1.0 / {0}", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "tan": "tl.sin({0}) / tl.cos({0})", "erf": "tl.erf({0})", "digamma": "digamma({0})",
    "sigmoid": "logistic({0})", "isnan": "{0} != {0}", "isinf": "tl.abs({0}) == float('inf')",
    "div": "{0} / {1}",
    "floor_div": "floor_divide({0}, {1}, libdevice.fmod({0}, {1}))",
    "trunc_div": "tl.where({0} / {1} < 0, tl.ceil({0} / {1}), tl.floor({0} / {1}))",
    "remainder": "signed_rest(libdevice.fmod({0}, {1}), {1})",
}  # fmt: skip

_INTEGER: dict[str, str] = {
    "ceil": "{0}", "floor": "{0}", "round": "{0}", "trunc": "{0}",
    "bitwise_not": "~{0}", "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
    "isnan": "{0} != {0}", "isinf": "{0} != {0}", "signbit": "{0} < 0",
    "floor_div": "integer_floor_divide({0}, {1})", "trunc_div": "{0} // {1}",
    "remainder": "integer_remainder({0}, {1})", "fmod": "{0} % {1}",
    "shift_left": "{0} << {1}", "shift_right": "{0} >> {1}",
    "check_index": "check_index({0}, {1})", "wrap_index": "wrap_index({0}, {1})",
}  # fmt: skip

_BOOL: dict[str, str] = {
    "add": "{0} | {1}", "mul": "{0} & {1}", "maximum": "{0} | {1}", "minimum": "{0} & {1}", "bitwise_not": "{0} == 0",
    "neg": "{0}", "abs": "{0}", "sign": "{0}",
}  # fmt: skip

LIBDEVICE = frozenset(
    """
    expm1 log1p log10 sinh cosh tanh asin acos atan asinh acosh atanh erfc erfinv lgamma pow atan2 fmod hypot copysign
    nextafter signbit
    """.split()  # noqa: SIM905
)


def expression(op: str, operands: list[str], operand_dtype: str, dtype: str) -> str:
    """The value of `op`; `operand_dtype` is the dtype that its tensor operands have, `dtype` that of its result."""
    if op == "convert":
        return convert(operands[0], operand_dtype, dtype)
    if op == "bitcast":
        return f"{operands[0]}.to({TYPES[dtype]}, bitcast=True)"
    narrow = operand_dtype in HALVES and op != "where"
    computing = "float32" if narrow else operand_dtype
    if narrow:
        operands = [f"{operand}.to(tl.float32)" for operand in operands]
    text = _body(op, operands, computing)
    return f"({text}).to({TYPES[dtype]})" if narrow and dtype in HALVES else f"({text})"


def _body(op: str, operands: list[str], dtype: str) -> str:
    if "." in op:
        if op not in FORMS:
            raise UnsupportedKernel(f"nobody registers a form in Triton of the op {op!r}")
        return str(FORMS[op](dtype, *operands))
    if dtype == "bool" and op in _BOOL:
        return _BOOL[op].format(*operands)
    if dtype in FLOATS and op in LIBDEVICE:
        return f"libdevice.{op}({', '.join(operands)})"
    if dtype not in FLOATS and op == "pow":
        return f"integer_power({operands[0]}, {operands[1]})"
    table = _FLOAT if dtype in FLOATS else _INTEGER
    pattern = table.get(op) or _ANY.get(op)
    if pattern is None:
        raise UnsupportedKernel(f"loop op {op!r} on {dtype} has no form in Triton")
    return pattern.format(*operands, type=TYPES[dtype])


def convert(value: str, source: str, target: str) -> str:
    """`value` in dtype `target`: to bool by comparison with zero, floats to integers towards zero."""
    if source == target:
        return value
    if target == "bool":
        return f"({value} != 0)"
    return f"{value}.to({TYPES[target]})"


def literal(value: object, dtype: str) -> str:
    """A number as a typed scalar tensor."""
    match value:
        case bool():
            text = str(int(value)) if dtype != "bool" else str(value)
        case int() | float():
            text = repr(float(value)) if dtype in FLOATS else repr(int(value))
        case _:
            text = f"float({value.text!r})"  # type: ignore[attr-defined]
    if dtype == "bool":
        return f"(tl.full([1, 1], {int(bool(value))}, tl.int1))"
    if dtype == "bfloat16":  # of which Triton's interpreter makes no constants
        return f"tl.full([1, 1], {text}, tl.float32).to(tl.bfloat16)"
    return f"tl.full([1, 1], {text}, {TYPES[dtype]})"
