"""Statements of a section as C++ lines, with the names, types and parameters of the kernel being written."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from codegen.cpp.operations import EXACT, Numbers, conversion, expression, reinterpretation
from codegen.cpp.types import c_type, literal
from codegen.errors import NO_SUCH_VALUE, OUT_OF_RANGE, ZERO_DIVISOR, MalformedLoop
from stagewire import loop
from stagewire.expr import Dim, Expr
from stagewire.graph import Ref
from stagewire.index import range_of
from stagewire.literals import FLOATS, HALVES, held, number
from stagewire.loop_ops import DIVISIONS, INDEX_CHECKS, PREDICATES, may_raise
from stagewire.statements import select, used_values
from stagewire.types import TensorType

TOO_LARGE = {
    **dict.fromkeys(("sin", "cos"), "__builtin_fabsf({0}) >= 32768.0f"),
    **dict.fromkeys(("fmod", "remainder", "floor_div"), "__builtin_fabsf({0}) >= 0x1p28f * __builtin_fabsf({1})"),
}
"""By op: when its float32 arguments are too large for a cheaper function, `sf_near_OP` (nan is as good as any)."""


class Scope:
    """What the writer of one kernel knows. Names are numbered in order of appearance, so equal kernels give equal text.

    `parameters`: buffers in order; `sizes`: symbolic sizes in order; `values`: text and dtype of every visible value;
    `rounded`: values of a 16-bit float dtype whose float32 is one of that dtype, so that a store need not round;
    `stored`: values of a 16-bit float dtype that nothing but stores of their own dtype uses, and these round;
    `tiles`: what stands for a load whose tile of memory was copied;
    `rows`: what stands for an element of a loop of lanes, behind a pointer to its row;
    `guard`: the condition under which the loop runs out of which statements are being moved ("" if it surely does).
    """

    def __init__(self, kernel: loop.Kernel, buffers: Mapping[str, TensorType]) -> None:
        self.buffers = buffers
        self.parameters: dict[str, int] = {}
        self.written: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.values: dict[str, str] = {}
        self.dtypes: dict[str, str] = {}
        self.rounded: set[str] = set()
        self.stored = _only_stored(kernel, buffers)
        self.tiles: dict[tuple[str, loop.Index], str] = {}
        self.rows: dict[tuple[str, loop.Index], str] = {}
        self.axes: dict[str, str] = {}
        self.extents: dict[str, Dim] = {}
        self.guard = ""
        self._reported: list[bool] = []
        self._count = 0
        for axis in (*kernel.axes, *(a for s in kernel.sections for a in s.axes)):
            self.axes.setdefault(axis.name, f"i{len(self.axes)}")
            self.extents[axis.name] = axis.size

    def sibling(self, kernel: loop.Kernel) -> Scope:
        """The scope of a kernel of the same function: of the same sizes, with pointers and values of its own."""
        scope = Scope(kernel, self.buffers)
        scope.sizes, scope._reported = self.sizes, self._reported
        return scope

    @property
    def reports(self) -> bool:
        """Whether anything in the function may report an error."""
        return bool(self._reported)

    def report(self) -> None:
        self._reported.append(True)

    def fresh(self) -> str:
        """A new value name."""
        self._count += 1
        return f"v{self._count - 1}"

    def parameter(self, buffer: str) -> str:
        """The pointer of a buffer."""
        return f"p{self.place(buffer)}"

    def place(self, buffer: str) -> int:
        """The number of a buffer among the parameters."""
        if buffer not in self.buffers:
            raise MalformedLoop(f"the kernel uses a buffer {buffer!r} that the graph does not declare")
        return self.parameters.setdefault(buffer, len(self.parameters))

    def element(self, buffer: str, index: loop.Index) -> str:
        """An element of a buffer as text."""
        pointer, key = self.parameter(buffer), (buffer, index)
        return self.tiles.get(key) or self.rows.get(key) or f"{pointer}[{self.index(index)}]"

    def dim(self, size: Dim) -> str:
        """A size as text: a number, or a size parameter."""
        if isinstance(size, Expr):
            return f"n{self.sizes.setdefault(size.text, len(self.sizes))}"
        return str(size)

    def index(self, index: loop.Index) -> str:
        """An index as text."""
        terms = [(self.dim(term.coefficient), self.atom(term.atom)) for term in index.terms if term.coefficient != 0]
        texts = [atom if factor == "1" else f"{factor} * {atom}" for factor, atom in terms]
        if index.constant != 0 or not texts:
            texts.append(self.dim(index.constant))
        return " + ".join(texts)

    def atom(self, atom: loop.Atom) -> str:
        """A factor of an index; everything there has type i64."""
        match atom:
            case loop.AxisAtom(name):
                return self.axes[name]
            case loop.ValueAtom(name):
                return f"(i64){self.value(name)}"
            case loop.FloorDivAtom(numerator, divisor):
                operator, general = "/", "sf_floor_div_i64"
            case loop.ModAtom(numerator, divisor):
                operator, general = "%", "sf_remainder_i64"
        span, text = range_of(numerator, self.extents), self.index(numerator)
        if span is not None and isinstance(divisor, int) and span[0] >= 0 and divisor > 0 and span[1] < 2**31:
            # 32-bit unsigned division by a constant vectorises, 64-bit does not
            return f"(i64)((u32)({text}) {operator} {divisor}u)"
        return f"{general}({text}, {self.dim(divisor)})"

    def value(self, name: str) -> str:
        """The text of a value in sight."""
        found = self.values.get(name)
        if found is None:
            raise MalformedLoop(f"the value {name!r} is used where it is not defined")
        return found

    def operand(self, operand: loop.Operand, dtype: str) -> str:
        """A value's text, or a literal in `dtype`."""
        return self.value(operand.name) if isinstance(operand, Ref) else literal(operand, dtype)

    def dtype(self, operand: loop.Operand, default: str) -> str:
        """The dtype of a value; literals take `default`."""
        return self.dtypes[operand.name] if isinstance(operand, Ref) else default

    def define(self, name: str, dtype: str) -> str:
        """A fresh C++ name for the value `name`."""
        text = self.fresh()
        self.values[name], self.dtypes[name] = text, dtype
        return text


def _only_stored(kernel: loop.Kernel, buffers: Mapping[str, TensorType]) -> set[str]:
    stored: dict[str, str] = {}
    used: set[str] = set()
    halves = {name for name, kind in buffers.items() if kind.dtype in HALVES}
    if not any(store.buffer in halves for store in select(kernel.sections, loop.Store)):
        return used
    for statement in (s for section in kernel.sections for s in section.statements):
        match statement:
            case loop.Store(buffer, value=Ref(name), mode="set") if buffer in halves:
                if stored.setdefault(name, buffers[buffer].dtype) != buffers[buffer].dtype:
                    used.add(name)
                used |= used_values(replace(statement, value=0))
            case _:
                used |= used_values(statement)
    made = select(kernel.sections, loop.Compute)
    return {one.result for one in made if stored.get(one.result) == one.dtype} - used


def write_statement(scope: Scope, statement: loop.Statement) -> list[str]:
    """The lines of one statement other than `Reduce`."""
    match statement:
        case loop.Load():
            return [_load(scope, statement)]
        case loop.Store():
            return [_store(scope, statement)]
        case loop.Compute():
            return _compute(scope, statement)
        case loop.IndexValue(result, index, dtype):
            text = scope.index(index)
            value = conversion("int64", dtype, f"({text})")
            return [f"{c_type(dtype).local} {scope.define(result, dtype)} = {value};"]
    raise MalformedLoop(f"unknown statement {type(statement).__name__}")


def _load(scope: Scope, load: loop.Load) -> str:
    element = scope.element(load.buffer, load.index)
    memory = scope.buffers[load.buffer].dtype
    kind = c_type(memory)
    if kind.load:
        element = f"{kind.load}({element})"
    elif memory == "bool":
        element = f"({element} != 0)"
    element = conversion(memory, load.dtype, element)
    if memory == load.dtype and (load.mask is None or _is_rounded(scope, load.other)):
        scope.rounded.add(load.result)
    if scope.guard:
        element = f"{scope.guard} ? {element} : 0"
    if load.mask is not None:
        element = f"({element})" if scope.guard else element
        element = f"{scope.value(load.mask.name)} ? {element} : {scope.operand(load.other, load.dtype)}"
    return f"{c_type(load.dtype).local} {scope.define(load.result, load.dtype)} = {element};"


def _store(scope: Scope, store: loop.Store) -> str:
    scope.parameter(store.buffer)
    scope.written.add(store.buffer)
    memory = scope.buffers[store.buffer].dtype
    kind = c_type(memory)
    value = conversion(scope.dtype(store.value, memory), memory, scope.operand(store.value, memory))
    target = scope.element(store.buffer, store.index)
    if store.mode == "atomic_add":
        before = f"{kind.load}({target})" if kind.load else target
        value = f"({before} | {value})" if memory == "bool" else f"({before} + {value})"
    exact = store.mode == "set" and scope.dtype(store.value, "") == memory and _is_rounded(scope, store.value)
    pack = (exact and kind.pack) or kind.store
    line = f"{target} = {pack}({value});" if pack else f"{target} = {value};"
    return f"if ({scope.value(store.mask.name)}) {line}" if store.mask is not None else line


def _compute(scope: Scope, statement: loop.Compute) -> list[str]:
    op, operands, dtype = statement.op, statement.operands, statement.dtype
    local = c_type(dtype).local
    if op in ("convert", "bitcast"):
        (operand,) = operands
        source = scope.dtype(operand, dtype)
        change = conversion if op == "convert" else reinterpretation
        value = change(source, dtype, scope.operand(operand, dtype))
        if op == "convert" and source != dtype and statement.result in scope.stored:
            value = conversion(source, dtype, scope.operand(operand, dtype), rounds=False)
        elif op == "bitcast" or source != dtype or _is_rounded(scope, operand):
            scope.rounded.add(statement.result)
        return [f"{local} {scope.define(statement.result, dtype)} = {value};"]
    if op in INDEX_CHECKS:
        return _check_index(scope, statement)
    if op == "philox":
        given = ", ".join(_as(scope, operand, "int64") for operand in operands)
        return [f"f32 {scope.define(statement.result, dtype)} = sf_philox({given});"]
    typed = _operand_dtype(scope, statement)
    condition = (scope.operand(operands[0], "bool"),) if op == "where" else ()
    texts = condition + tuple(_as(scope, o, typed) for o in operands[len(condition) :])
    lines = []
    if op in DIVISIONS and may_raise(statement):
        scope.report()
        lines.append(f"bad |= {_guarded(scope, f'{texts[1]} == 0')} ? {ZERO_DIVISOR} : 0;")
    if op == "check_range":
        scope.report()
        value, low, high = texts
        inside = f"(({value} >= {low}) & ({value} <= {high}))"
        lines.append(f"bad |= {_guarded(scope, f'!{inside}')} ? {NO_SUCH_VALUE} : 0;")
    if typed == dtype and op in EXACT:
        rounded = all(_is_rounded(scope, o) for o in operands[len(condition) :])
    else:
        rounded = statement.result not in scope.stored
    if rounded:
        scope.rounded.add(statement.result)
    name = scope.define(statement.result, dtype)
    lines.append(_definition(scope, statement, name, typed, texts))
    return lines


def _definition(
    scope: Scope, statement: loop.Compute, name: str, typed: str, texts: tuple[str, ...], form: str = ""
) -> str:
    rounds = statement.result not in scope.stored
    numbers: Numbers = ()
    if typed in FLOATS:
        kind = "float32" if c_type(typed).local == "f32" else typed
        numbers = tuple([None if isinstance(o, Ref) else held(number(o), kind) for o in statement.operands])
    text = expression(statement.op, typed, texts, numbers, form, rounds or typed != statement.dtype)
    if statement.op not in PREDICATES and typed != statement.dtype:
        text = conversion(typed, statement.dtype, text, rounds)
    return f"{c_type(statement.dtype).local} {name} = {text};"


def range_guard(scope: Scope, statement: loop.Statement) -> tuple[str, str] | None:
    """(whether an argument is too large for a cheaper function, the line that calls that) of a statement as written;
    None where its function has no cheaper one."""
    if not isinstance(statement, loop.Compute) or statement.op not in TOO_LARGE:
        return None
    typed = _operand_dtype(scope, statement)
    if c_type(typed).suffix != "f32":
        return None
    texts = tuple(_as(scope, operand, typed) for operand in statement.operands)
    near = _definition(scope, statement, scope.value(statement.result), typed, texts, "near_")
    return TOO_LARGE[statement.op].format(*texts), near


def _guarded(scope: Scope, condition: str) -> str:
    return f"({scope.guard} && {condition})" if scope.guard else condition


def _is_rounded(scope: Scope, operand: loop.Operand) -> bool:
    """Whether an operand is a value of its 16-bit dtype as it stands: a literal may have more digits."""
    return operand.name in scope.rounded if isinstance(operand, Ref) else operand == 0


def _as(scope: Scope, operand: loop.Operand, dtype: str) -> str:
    return conversion(scope.dtype(operand, dtype), dtype, scope.operand(operand, dtype))


def _operand_dtype(scope: Scope, statement: loop.Compute) -> str:
    """The dtype that the operands are computed in: that of the first value among them."""
    operands = statement.operands[1:] if statement.op == "where" else statement.operands
    for operand in operands:
        if isinstance(operand, Ref):
            return scope.dtypes[operand.name] if operand.name in scope.dtypes else scope.value(operand.name)
    if statement.op in PREDICATES:
        return "float64" if any(isinstance(o, float) for o in operands) else "int64"
    return statement.dtype


def _check_index(scope: Scope, statement: loop.Compute) -> list[str]:
    """An index out of range is reported and replaced by 0, so no access strays; wrapped ones may count from the end."""
    index, size = statement.operands
    dtype = statement.dtype
    if dtype in FLOATS:
        raise MalformedLoop(f"{statement.op} of a {dtype} value")
    scope.report()
    value, bound = f"(i64){_as(scope, index, dtype)}", f"(i64){_as(scope, size, dtype)}"
    raw = scope.fresh()
    name = scope.define(statement.result, dtype)
    start = f"{value} < 0 ? {value} + {bound} : {value}" if statement.op == "wrap_index" else value
    return [
        f"i64 {raw} = {start};",
        f"bool {raw}_ok = (u64){raw} < (u64){bound};",
        f"bad |= {_guarded(scope, f'!{raw}_ok')} ? {OUT_OF_RANGE} : 0;",
        f"{c_type(dtype).local} {name} = ({c_type(dtype).local})({raw}_ok ? {raw} : 0);",
    ]
