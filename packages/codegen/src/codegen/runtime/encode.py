"""A unit as the words that the native executor reads (see vm.cpp).

word stream ::= item* input_type* instruction* output* sizes?
item        ::= slot 0 type|-1                         a buffer in the arena, placed where a frame is made; with a
                                                       type, a tensor is made on it
input_type  ::= type | -1                              -1: an integer, the value of a symbol
instruction ::= op length operand*
output      ::= slot | -1-literal | VALUES+value       a value of the program of sizes
type        ::= dtype|HOST? ndim offset size* stride*   referred to by its place in the table of types

Any word may be a symbolic size: it is written anew for each new set of sizes, by what `sizes` says (see sizes.h).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from codegen.errors import MalformedLoop
from codegen.runtime.arguments import closure, inputs_of, operator_of, resolve
from codegen.runtime.cpu_products import WindowProducts, window_products
from codegen.runtime.externs import NATIVE, WRITES_ITS_RESULT
from codegen.runtime.memory_kinds import Homes, is_native, plan_memory
from codegen.runtime.python_wrapper import reading_of
from stagewire.expr import Dim, Expr, steps_of
from stagewire.graph import Arg, Ref
from stagewire.program import Allocate, CallExtern, Launch, MakeView, Unit, mentioned_buffers
from stagewire.symbols import symbol_places
from stagewire.types import ITEM_SIZE, TensorType

_SIZE_NAMES = ("CONSTANT", "ADD", "MULTIPLY", "FLOOR_DIVIDE", "REMAINDER", "LEAST", "GREATEST")
SIZE_OPS: dict[str, int] = {name: number for number, name in enumerate(_SIZE_NAMES)}
_OPERATORS = {"+": "ADD", "*": "MULTIPLY", "//": "FLOOR_DIVIDE", "%": "REMAINDER", "Min": "LEAST", "Max": "GREATEST"}


class SizeProgram:
    """Symbolic sizes as a program of integers that the native executor runs once for each new set of sizes.

    program ::= instruction*    instruction ::= op left right    operands are numbers of values; symbols come first

    There are instructions for every expression that was asked for; equal parts are computed once.

    >>> program = SizeProgram(["n", "m"])
    >>> program.value(Expr("4*m*n")), program.instructions
    (4, [(0, 4, 0), (2, 2, 1), (2, 3, 0)])
    """

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = {name: number for number, name in enumerate(symbols)}
        self.instructions: list[tuple[int, int, int]] = []
        self._known: dict[object, int] = {}

    def value(self, expression: Expr) -> int:
        """The number of the value that `expression` has."""
        found = self._known.get(expression.text)
        if found is None:
            found = self._known[expression.text] = self._compute(expression)
        return found

    def _compute(self, expression: Expr) -> int:
        values: list[int] = []
        for kind, operand in steps_of(expression):
            if isinstance(operand, int):
                values.append(self._emit("CONSTANT", operand, 0))
            elif operand:
                if operand not in self.symbols:
                    known = ", ".join(self.symbols)
                    raise MalformedLoop(f"no input gives the symbol {operand!r} a value; known: {known}")
                values.append(self.symbols[operand])
            else:
                right = values.pop()
                if kind == "-":
                    kind, right = "+", self._emit("MULTIPLY", self._emit("CONSTANT", -1, 0), right)
                values[-1] = self._emit(_OPERATORS[kind], values[-1], right)
        (value,) = values
        return value

    def _emit(self, op: str, left: int, right: int) -> int:
        instruction = (SIZE_OPS[op], left, right)
        found = self._known.get(instruction)
        if found is None:
            found = self._known[instruction] = len(self.symbols) + len(self.instructions)
            self.instructions.append(instruction)
        return found


_NAMES = (
    "FRESH", "WINDOW", "LAUNCH", "DROP", "CALL", "MM", "BMM", "ADDMM", "BADDBMM", "CONVOLUTION", "CONVOLUTION_BACKWARD",
    "ATTENTION", "ATTENTION_BACKWARD", "LAUNCH_GRID", "PHILOX_STATE", "SKIP_IF_MORE", "FEW_WINDOWS", "TAKE",
    "GIVE_BACK", "NUMBER", "WRITES_INPUTS",
)  # fmt: skip
OPS: dict[str, int] = {name: number for number, name in enumerate(_NAMES)}
SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "complex32": 8,
    "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15, "float8_e5m2": 23, "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25, "float8_e4m3fnuz": 26, "uint16": 27, "uint32": 28, "uint64": 29,
}  # fmt: skip
"""c10::ScalarType, part of libtorch's ABI."""

HOST = 256
"""Marks the dtype of memory of the CPU in a unit of another device."""

VALUES = 1 << 40
"""Where the numbers of values begin among outputs."""

WHAT = {"number": 0, "size": 1, "stride": 2}
"""What of an input a symbol is."""

SHARES_STORAGE, ON_ADDRESS, ADDRESS_ONLY = 0, 1, 2
"""Modes of WINDOW."""


class EncodedUnit(NamedTuple):
    """`head` as `make_unit` in vm.cpp reads it; `calls` and `literals` are the Python objects that words number.

    `symbols`: their names, in the order of their numbers.
    """

    head: array[int]
    words: array[int]
    types: array[int]
    type_of: dict[int, TensorType]
    calls: tuple[Callable[..., Any], ...]
    literals: tuple[Any, ...]
    symbols: tuple[str, ...] = ()


Launcher = Callable[[str], tuple[str, tuple[Dim, ...]] | None]
"""(operation, first operands) for the launch of a kernel; how many buffers it takes, these and its sizes follow.
None: there is nothing to run."""


def encode(unit: Unit, launch: Launcher, limits: tuple[tuple[Dim, int], ...] = ()) -> EncodedUnit:
    """Encode a unit; `launch` says how each kernel is launched.

    limits: sizes, and the most that each may be for the kernels to be right; else a run is left to the slow executor.
    """
    return _Encoder(unit, plan_memory(unit), launch).run(limits)


class _Encoder:
    """Tables that grow while a unit is encoded."""

    def __init__(self, unit: Unit, homes: Homes, launch: Launcher) -> None:
        self.unit, self.homes, self.launch = unit, homes, launch
        self.slots = {name: number for number, name in enumerate(unit.inputs)}
        self.symbols = symbol_places(inputs_of(unit))
        self.program = SizeProgram(tuple(self.symbols))
        self.code: list[Dim] = []
        self.types: list[Dim] = []
        self.type_at: dict[TensorType, int] = {}
        self.calls: list[Callable[..., Any]] = []
        self.literals: list[Any] = []
        self.writes_inputs = False
        self.owned: set[str] = set(unit.inputs)  # where the caller gave them up; else dropping one does nothing

    def run(self, limits: tuple[tuple[Dim, int], ...]) -> EncodedUnit:
        input_types = [self.type(type_ if isinstance(type_, TensorType) else None) for type_ in self.unit.input_types]
        of_arena = self.homes.lifetimes if self.homes.device != "cpu" else ()
        taken = min((one.start for one in of_arena), default=-1)
        given_back = max((one.end for one in of_arena), default=-1)
        for position, instruction in enumerate(self.unit.instructions):
            if position == taken:
                self.emit("TAKE")
            self.instruction(instruction)
            self.drops(position, mentioned_buffers(instruction))
            if position == given_back:
                self.emit("GIVE_BACK")
        outputs = [self.output(output) for output in self.unit.outputs]
        items = self.items()
        words: list[Dim] = [word for item in items for word in item] + input_types
        start = len(words)
        words.extend(self.code)
        end = len(words)
        words.extend(outputs)
        arena = [name for name, home in self.homes.of.items() if home.kind == "arena"]
        sizes = self.sizes(words, arena, limits)
        head = (len(self.unit.inputs), len(self.slots), len(outputs), len(items), start, end, *sizes)
        type_of = {at: type_ for type_, at in self.type_at.items()}
        tables = array("q", words), array("q", self.types)  # type: ignore[arg-type]
        names = tuple(self.symbols)
        return EncodedUnit(array("q", head), *tables, type_of, tuple(self.calls), tuple(self.literals), names)

    def sizes(self, words: list[Dim], arena: Sequence[str], limits: tuple[tuple[Dim, int], ...]) -> tuple[int, ...]:
        """Append what the arena and symbolic sizes take to the words, of which those that are sizes become 0; its part
        of the head.

        `arena`: the buffers there, in the order of the items. Without any nothing is appended.
        """
        is_fixed = not any(isinstance(word, Expr) for table in (words, self.types) for word in table)
        if is_fixed and not self.symbols and not arena:
            return (0,) * 13
        roots = {one.name: number for number, one in enumerate(self.homes.lifetimes)}
        root_start = len(words)
        words += [word for one in self.homes.lifetimes for word in (one.size, one.start, one.end)]
        place_start = len(words)
        for number, name in enumerate(arena):
            words += [number, roots[self.homes.of[name].root], self.homes.distance[name]]
        limit_start = len(words)
        words += [word for limit in limits for word in limit]
        patches = self._patches(words), self._patches(self.types)
        start = len(words)
        words += [word for place in self.symbols.values() for word in (place.input, WHAT[place.what], place.dimension)]
        words += [word for instruction in self.program.instructions for word in instruction]
        words += [word for patch in (*patches[0], *patches[1]) for word in patch]
        counts = len(self.symbols), len(self.program.instructions), len(patches[0]), len(patches[1]), len(roots)
        starts = start, root_start, place_start, limit_start
        return (*counts, len(arena), len(limits), *starts, len(words), len(self.types))

    def _patches(self, table: list[Dim]) -> list[tuple[int, int]]:
        """(position, value) of each symbolic size of a table, in which it becomes 0."""
        found: list[tuple[int, int]] = []
        for position, word in enumerate(table):
            if isinstance(word, Expr):
                found.append((position, self.program.value(word)))
                table[position] = 0
        return found

    # ---- tables

    def slot(self, name: str) -> int:
        """The number of a buffer."""
        return self.slots.setdefault(name, len(self.slots))

    def type(self, type_: TensorType | None) -> int:
        """The place of a type in the table; -1 for none."""
        if type_ is None:
            return -1
        found = self.type_at.get(type_)
        if found is None:
            found = self.type_at[type_] = len(self.types)
            host = HOST if type_.device != self.homes.device else 0
            self.types.extend((SCALAR_TYPES[type_.dtype] | host, len(type_.shape), type_.storage_offset))
            self.types.extend((*type_.shape, *type_.stride))
        return found

    def emit(self, op: str, *operands: Dim) -> None:
        self.code.extend((OPS[op], len(operands), *operands))

    def results(self, call: CallExtern, count: int) -> tuple[int, ...]:
        """(slot, type) of each of the first `count` results; slot -1 for one not kept."""
        words: list[int] = []
        for number in range(count):
            name = call.results[number] if number < len(call.results) else ""
            if name:
                self.owned.add(name)
            words += (self.slot(name) if name else -1, self.type(self.homes.types[name]) if name else -1)
        return tuple(words)

    # ---- instructions

    def instruction(self, instruction: object) -> None:
        match instruction:
            case Allocate(buffer, type_, None):
                self.make(buffer, type_)
            case Allocate(buffer, type_, str(reuse)):
                if reuse in self.unit.written and not self.writes_inputs:
                    self.writes_inputs = True
                    self.emit("WRITES_INPUTS")
                self.window(buffer, type_)
            case MakeView(buffer, _, type_):
                self.window(buffer, type_)
            case Launch(kernel, buffers, sizes):
                way = self.launch(kernel)
                if way is not None:
                    operation, operands = way
                    by_value = self.homes.device if operation == "LAUNCH_GRID" else None
                    slots = (self.given(name, by_value) for name in buffers)
                    self.emit(operation, *operands, len(buffers), *slots, *sizes)
            case CallExtern():
                self.call(instruction)

    def given(self, name: str, device: str | None) -> int:
        """The slot of what a kernel takes; ~slot for memory elsewhere than on `device`, of which it takes the value."""
        type_ = self.homes.types[name]
        return ~self.slot(name) if device and type_ is not None and type_.device != device else self.slot(name)

    def make(self, name: str, type_: TensorType | None) -> None:
        """Memory for a root; the arena needs no instruction."""
        kind = self.homes.of[name].kind
        if kind == "fresh":
            self.owned.add(name)
            self.emit("FRESH", self.slot(name), self.type(type_))
        elif kind == "number":
            self.emit("NUMBER", self.slot(name))

    def window(self, name: str, type_: TensorType) -> None:
        """`name` is another reading of memory that exists; encoded as a window on its root, which is always there."""
        home, distance, item = self.homes.of[name], self.homes.distance[name], ITEM_SIZE[type_.dtype]
        root, first = home.root, self.homes.types[home.root]
        if home.kind == "arena":
            return
        if name not in self.homes.handled:
            mode = ADDRESS_ONLY
        elif home.kind == "input" and root not in self.homes.escaping:
            mode = ON_ADDRESS
        elif first is not None and first.dtype == type_.dtype:
            mode = SHARES_STORAGE
            self.owned.add(name)
        else:
            self.owned.add(name)
            numbers = (*type_.shape, *type_.stride, distance)
            window = lambda tensor, *numbers: reading_of(tensor, type_.dtype, numbers)  # noqa: E731
            self.python(window, [root], (self.slot(name), -1), numbers)
            return
        self.emit("WINDOW", self.slot(name), self.slot(root), self.type(type_), mode, distance, distance // item)

    def call(self, call: CallExtern) -> None:
        if is_native(call, self.homes.device):
            encoded = NATIVE[call.target](call, self)
            if encoded is not None:
                for name, type_ in zip(call.results, call.result_types, strict=False):
                    if name and call.target in WRITES_ITS_RESULT:
                        self.make(name, type_)
                few = window_products(call, self.homes.types)
                if few is not None:
                    self.either(call, few, encoded)
                else:
                    self.emit(encoded[0], *encoded[1])
                return
        function, names, numbers = closure(call, operator_of(call))
        self.python(function, names, self.results(call, len(call.results)), numbers)

    def either(self, call: CallExtern, few: WindowProducts, encoded: tuple[str, tuple[Dim, ...]]) -> None:
        """A call in one way in runs where it has few windows, in the other else."""
        start = len(self.code)
        self.emit("SKIP_IF_MORE", few.count, few.most, 0)
        if few.function is None:
            self.emit("FEW_WINDOWS", *encoded[1])
        else:
            function, names, numbers = closure(call, few.function)
            self.python(function, names, self.results(call, len(call.results)), numbers)
        self.emit("SKIP_IF_MORE", 1, 0, 2 + len(encoded[1]))
        self.code[start + 4] = len(self.code) - start - 5
        self.emit(encoded[0], *encoded[1])

    def python(
        self, function: Callable[..., Any], names: list[str], results: tuple[int, ...], numbers: tuple[Dim, ...]
    ) -> None:
        """A call of `function` with tensors, then integers."""
        position = len(self.calls)
        self.calls.append(function)
        slots = [self.slot(name) for name in names]
        self.emit("CALL", position, len(slots), len(results) // 2, len(numbers), *slots, *numbers, *results)

    def drops(self, position: int, names: tuple[str, ...]) -> None:
        """Let go of tensors after their last use; a root that others are windows on, after theirs."""
        for name in dict.fromkeys((*names, *(self.homes.of[name].root for name in names))):
            is_root = self.homes.of[name].root == name
            last = self.homes.last_use_of_root[name] if is_root else self.homes.last_use[name]
            if name in self.owned and last == position:
                self.emit("DROP", self.slot(name))

    # ---- ends

    def items(self) -> list[tuple[Dim, ...]]:
        """The buffers in the arena, with tensors on those that calls take."""
        found = []
        for name, home in self.homes.of.items():
            if home.kind == "arena":
                type_ = self.homes.types[name] if name in self.homes.handled else None
                found.append((self.slot(name), 0, self.type(type_)))
        return found

    def output(self, output: Arg) -> int:
        if isinstance(output, Ref):
            return self.slot(output.name)
        if isinstance(output, Expr):
            return VALUES + self.program.value(output)
        self.literals.append(resolve(output, {}, {}))
        return -len(self.literals)
