"""A unit as the words that the native executor reads (see vm.cpp).

word stream ::= item* input_type* instruction* output*
item        ::= slot byte_offset type|-1               a buffer in the arena; with a type, a tensor is made on it
instruction ::= op length operand*
output      ::= slot | -1-literal
type        ::= dtype|HOST? ndim offset size* stride*   referred to by its place in the table of types
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from codegen.runtime.arguments import operator, resolve
from codegen.runtime.externs import NATIVE, WRITES_ITS_RESULT
from codegen.runtime.memory_kinds import Homes, is_native, mentioned, plan_memory
from stagewire.graph import Arg, List, Ref, Tuple, references
from stagewire.program import Allocate, CallExtern, Launch, MakeView, Unit
from stagewire.types import ITEM_SIZE, TensorType

_NAMES = (
    "FRESH", "WINDOW", "LAUNCH", "DROP", "CALL", "MM", "BMM", "ADDMM", "BADDBMM", "CONVOLUTION", "CONVOLUTION_BACKWARD",
    "ATTENTION", "ATTENTION_BACKWARD", "LAUNCH_GRID",
)  # fmt: skip
OPS: dict[str, int] = {name: number for number, name in enumerate(_NAMES)}
"""As `enum Op` in vm.cpp."""

SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "complex32": 8,
    "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15, "float8_e5m2": 23, "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25, "float8_e4m3fnuz": 26, "uint16": 27, "uint32": 28, "uint64": 29,
}  # fmt: skip
"""c10::ScalarType, part of libtorch's ABI."""

HOST = 256
"""Marks the dtype of memory of the CPU in a unit of another device, as in vm.cpp."""

SHARES_STORAGE, ON_ADDRESS, ADDRESS_ONLY = 0, 1, 2
"""Modes of WINDOW."""


class EncodedUnit(NamedTuple):
    """`head` as `make_unit` in vm.cpp reads it; `calls` and `literals` are the Python objects that words number."""

    head: array[int]
    words: array[int]
    types: array[int]
    type_of: dict[int, TensorType]
    calls: tuple[Callable[..., Any], ...]
    literals: tuple[Any, ...]


Launcher = Callable[[str], tuple[str, tuple[int, ...]] | None]
"""(operation, first operands) for the launch of a kernel; its buffers follow. None: there is nothing to run."""


def encode(unit: Unit, launch: Launcher) -> EncodedUnit:
    """Encode a unit without symbolic sizes; `launch` says how each kernel is launched."""
    return _Encoder(unit, plan_memory(unit), launch).run()


class _Encoder:
    """Tables that grow while a unit is encoded."""

    def __init__(self, unit: Unit, homes: Homes, launch: Launcher) -> None:
        self.unit, self.homes, self.launch = unit, homes, launch
        self.slots = {name: number for number, name in enumerate(unit.inputs)}
        self.code = array("q")
        self.types = array("q")
        self.type_at: dict[TensorType, int] = {}
        self.calls: list[Callable[..., Any]] = []
        self.literals: list[Any] = []
        self.owned: set[str] = set(unit.inputs)  # where the caller gave them up; else dropping one does nothing

    def run(self) -> EncodedUnit:
        input_types = [self.type(type_) for type_ in self.unit.input_types]
        for position, instruction in enumerate(self.unit.instructions):
            self.instruction(instruction)
            self.drops(position, mentioned(instruction))
        outputs = [self.output(output) for output in self.unit.outputs]
        items = self.items()
        words = array("q", [word for item in items for word in item] + input_types)
        start = len(words)
        words.extend(self.code)
        end = len(words)
        words.extend(outputs)
        head = (
            len(self.unit.inputs),
            len(self.slots),
            len(outputs),
            self.homes.arena_bytes,
            len(items),
            0,
            start,
            end,
            end,
        )
        type_of = {at: type_ for type_, at in self.type_at.items()}
        return EncodedUnit(array("q", head), words, self.types, type_of, tuple(self.calls), tuple(self.literals))

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
            self.types.extend((SCALAR_TYPES[type_.dtype] | host, len(type_.shape), type_.storage_offset))  # type: ignore[arg-type]
            self.types.extend((*type_.shape, *type_.stride))  # type: ignore[arg-type]
        return found

    def emit(self, op: str, *operands: int) -> None:
        self.code.extend((OPS[op], len(operands), *operands))

    def own(self, name: str) -> None:
        self.owned.add(name)

    def results(self, call: CallExtern, count: int) -> tuple[int, ...]:
        """(slot, type) of each of the first `count` results; slot -1 for one not kept."""
        words: list[int] = []
        for number in range(count):
            name = call.results[number] if number < len(call.results) else ""
            if name:
                self.own(name)
            words += (self.slot(name) if name else -1, self.type(self.homes.types[name]) if name else -1)
        return tuple(words)

    # ---- instructions

    def instruction(self, instruction: object) -> None:
        match instruction:
            case Allocate(buffer, type_, None):
                self.make(buffer, type_)
            case Allocate(buffer, type_, str()):
                self.window(buffer, type_)
            case MakeView(buffer, _, type_):
                self.window(buffer, type_)
            case Launch(kernel, buffers):
                way = self.launch(kernel)
                if way is not None:
                    operation, operands = way
                    self.emit(operation, *operands, len(buffers), *(self.slot(name) for name in buffers))
            case CallExtern():
                self.call(instruction)

    def make(self, name: str, type_: TensorType | None) -> None:
        """Memory for a root; the arena needs no instruction."""
        if self.homes.of[name].kind == "fresh":
            self.own(name)
            self.emit("FRESH", self.slot(name), self.type(type_))

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
            self.own(name)
        else:
            self.own(name)
            self.python(
                lambda tensor: at_distance(tensor, type_, distance), [root], (self.slot(name), self.type(type_))
            )
            return
        self.emit("WINDOW", self.slot(name), self.slot(root), self.type(type_), mode, distance, distance // item)

    def call(self, call: CallExtern) -> None:
        if is_native(call, self.homes.device):
            if call.target in WRITES_ITS_RESULT:
                self.make(call.results[0], call.result_types[0])
            encoded = NATIVE[call.target](call, self)
            if encoded is not None:
                self.emit(encoded[0], *encoded[1])
                return
            if call.target in WRITES_ITS_RESULT:
                self.owned.discard(call.results[0])
        function, names = closure(call)
        self.python(function, names, self.results(call, len(call.results)))

    def python(self, function: Callable[..., Any], names: list[str], results: tuple[int, ...]) -> None:
        number = len(self.calls)
        self.calls.append(function)
        slots = [self.slot(name) for name in names]
        self.emit("CALL", number, len(slots), len(results) // 2, *slots, *results)

    def drops(self, position: int, names: tuple[str, ...]) -> None:
        """Let go of tensors after their last use; a root that others are windows on, after theirs."""
        for name in dict.fromkeys((*names, *(self.homes.of[name].root for name in names))):
            is_root = self.homes.of[name].root == name
            last = self.homes.last_use_of_root[name] if is_root else self.homes.last_use[name]
            if name in self.owned and last == position:
                self.emit("DROP", self.slot(name))

    # ---- ends

    def items(self) -> list[tuple[int, int, int]]:
        """The buffers in the arena, with tensors on those that calls take."""
        found = []
        for name, home in self.homes.of.items():
            if home.kind == "arena":
                type_ = self.homes.types[name] if name in self.homes.handled else None
                place = self.homes.offsets[home.root] + self.homes.distance[name]
                found.append((self.slot(name), place, self.type(type_)))
        return found

    def output(self, output: Arg) -> int:
        if isinstance(output, Ref):
            return self.slot(output.name)
        self.literals.append(resolve(output, {}, {}))
        return -len(self.literals)


def closure(call: CallExtern) -> tuple[Callable[..., Any], list[str]]:
    """The operator as a function of its tensors alone, and their buffers in order."""
    names = list(dict.fromkeys(name for arg in (*call.args, *call.kwargs.values()) for name in references(arg)))
    constants: dict[str, Any] = {"operator": operator(call.target)}

    def text(arg: Arg) -> str:
        if isinstance(arg, Ref):
            return f"t{names.index(arg.name)}"
        if isinstance(arg, List | Tuple) and any(True for _ in references(arg)):
            items = ", ".join(text(item) for item in arg.items)
            return f"[{items}]"
        constants[f"c{len(constants)}"] = resolve(arg, {}, {})
        return f"c{len(constants) - 1}"

    given = [text(arg) for arg in call.args] + [f"{key}={text(arg)}" for key, arg in call.kwargs.items()]
    parameters = ", ".join(f"t{number}" for number in range(len(names)))
    return eval(f"lambda {parameters}: operator({', '.join(given)})", constants), names


def at_distance(tensor: torch.Tensor, type_: TensorType, distance: int) -> torch.Tensor:
    """A tensor of `type_` on the memory of `tensor`, `distance` bytes after its first element."""
    item = ITEM_SIZE[type_.dtype]
    start = tensor.storage_offset() * tensor.element_size() + distance
    window = torch.empty(0, dtype=getattr(torch, type_.dtype), device=tensor.device)
    return window.set_(tensor.untyped_storage(), start // item, type_.shape, type_.stride)  # type: ignore[call-overload]
