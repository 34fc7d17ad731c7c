"""Values back to bytecode: read inputs from their sources, rebuild outputs, replay side effects."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

import torch

from bytecap.bytecode import rebuild
from bytecap.bytecode.assembler import Assembler
from bytecap.bytecode.decode import argument_names
from bytecap.context_types import Tracer
from bytecap.errors import CannotRebuild
from bytecap.guards.printing import to_python
from bytecap.objects.arrays.numpy_arrays import ArrayValue
from bytecap.objects.arrays.tensor_hooks import HookHandle
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue
from bytecap.objects.base import Constant, IteratorValue, Value
from bytecap.objects.containers.host_containers import SetValue
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.objects.functions import CellValue, FunctionValue, PartialValue
from bytecap.objects.identity import IdentityToken
from bytecap.objects.instances.objects import ObjectValue
from bytecap.objects.numbers.open_constants import OpenConstant
from bytecap.objects.numbers.symbolic import DataCondition, SymbolicNumber
from bytecap.objects.opaque import ContextToken
from stagewire.capture import Attribute, Builtin, Cell, DictKey, Global, HandleSource, Item, Local, Reading, Source
from stagewire.capture import DictValue as ValueAt

# Values with identity: built once, then loaded from a local.
_SHARED = (
    ArrayValue, ContextToken, HookHandle, TupleValue, ListValue, DictValue, SetValue, ObjectValue, FunctionValue,
    CellValue, IteratorValue, PartialValue, OpenConstant, WrapperValue,
)  # fmt: skip
# Values whose `real` is not the object itself.
_REBUILT = (ArrayValue, CellValue, TensorValue, WrapperValue, IdentityToken)
_LIMIT = 150


class Emitter(Assembler):
    """Emits the part of the replacement code that follows the graph call.

    names: the frame's globals. is_seen: whether an object that was made, a traceback, holds the frame.
    """

    def __init__(self, tracer: Tracer, code: CodeType, names: dict[str, Any]) -> None:
        super().__init__(code.co_firstlineno)
        self.tracer = tracer
        self.code = code
        self.names = names
        self.outputs: dict[str, None] = {}
        self.symbols: dict[str, Source] = {}
        self.is_seen = False
        self._locals: dict[int, str] = {}
        self._open: set[int] = set()
        self._alive: list[Value] = []
        self._depth = 0
        # What can only be emitted when all that is being built is there, and when the side effects are done.
        self.unfinished: list[Callable[[Emitter], None]] = []
        self.settling: list[Callable[[Emitter], None]] = []

    # -- values

    def load(self, value: Value) -> None:
        """Push the object that `value` stands for."""
        known = self._locals.get(id(value))
        if known is not None:
            self.load_local(known)
            return
        if isinstance(value, (SymbolicNumber, DataCondition)):
            value.reconstruct(self)
        elif isinstance(value, Constant) and not value.is_open:
            self.constant(value.value)
        elif value.source is not None:
            emit_source(self, value.source, self.tracer.names.objects)
            if isinstance(value.source, Reading):
                # Each reading makes another object.
                self.keep(value)
                self.load(value)
        elif getattr(value, "real", None) is not None and not isinstance(value, _REBUILT):
            self.constant(value.real)  # type: ignore[attr-defined]
        else:
            self._build(value)
            while self.unfinished and self._depth == 0:
                self.unfinished.pop()(self)

    def settle(self) -> None:
        """The side effects are done."""
        while self.settling:
            self.settling.pop()(self)

    def _build(self, value: Value) -> None:
        if id(value) in self._open or self._depth > _LIMIT:
            raise CannotRebuild(f"a {value.describe()} that contains itself")
        self._open.add(id(value))
        self._depth += 1
        value.reconstruct(self)
        self._depth -= 1
        self._open.discard(id(value))
        if isinstance(value, _SHARED) and id(value) not in self._locals:
            self.keep(value)
            self.load(value)

    def keep(self, value: Value) -> None:
        """Pop the object of `value` into a local, from which later loads take it."""
        name = f".kept{len(self._locals)}"
        self._locals[id(value)] = name
        self._alive.append(value)
        self._open.discard(id(value))
        self.store_local(name)

    def constant(self, value: Any) -> None:
        """Push an object."""
        if any(value is cls for cls in self.tracer.made_classes):
            raise CannotRebuild(f"class {value.__qualname__}, which each run makes anew")
        super().constant(value)

    def push(self, part: Any) -> None:
        """Push a value's object, a tuple, list or dict of such, or a constant."""
        kind = type(part)
        if isinstance(part, Value):
            self.load(part)
        elif kind in (tuple, list, dict):
            for item in _inside(part):
                self.push(item)
            self.build({tuple: "TUPLE", list: "LIST", dict: "MAP"}[kind], len(part))
        else:
            self.constant(part)

    def call_with(self, function: Callable[..., Any], *parts: Any) -> None:
        """Push what `function` gives for these parts, each as `push` takes it."""
        for part in parts:
            self.push(part)
        self.call_function(function, arguments=len(parts))

    def set_attributes(self, value: Value, attributes: Mapping[str, Value]) -> None:
        """Give the new object of `value`, which is on the stack, attributes."""
        if attributes:
            self.keep(value)
            for name, item in attributes.items():
                self.load(item)
                self.load(value)
                self.store_attribute(name)
            self.load(value)

    def prepare(self, value: Any) -> None:
        """Have the object of `value` (those of a list, tuple or dict) ready in a local before side effects start."""
        if not isinstance(value, Value):
            for part in _inside(value):
                self.prepare(part)
            return
        is_computed = isinstance(value, (SymbolicNumber, DataCondition))
        is_fixed = isinstance(value, Constant) and not value.is_open and not is_computed
        if not is_fixed and id(value) not in self._locals:
            self.load(value)
            if id(value) in self._locals:
                self.pop()
            else:
                self.keep(value)

    def load_outside_cell(self, cell: CellValue) -> None:
        """Push a cell that was there before."""
        if cell.place is None:
            self.constant(cell.real)
        else:
            emit_source(self, cell.place, self.tracer.names.objects)

    def graph_output(self, name: str) -> None:
        """Push a result of the graph."""
        self.outputs[name] = None
        self.load_local(f".out_{name}")

    def symbol(self, name: str) -> None:
        """Push the number that a symbol, of a size or of a float, is in the running call."""
        if name in self.tracer.sizes.made:
            self.load_local(self.tracer.sizes.made[name])
            return
        if name in self.tracer.graph.numbers:
            self.graph_output(name)
            return
        self.symbols[name] = self.tracer.sizes.sources[name]
        self.load_local(symbol_local(name))

    def let_go_of_all(self) -> None:
        """Forget all variables of the frame: what is needed of them is on the stack."""
        self.let_go(*argument_names(self.code), *self._locals.values(), *(f".out_{name}" for name in self.outputs))


def _inside(part: Any) -> Iterable[Any]:
    """What a tuple, list or dict holds; nothing of anything else."""
    if type(part) is dict:
        return itertools.chain.from_iterable(part.items())
    return part if type(part) in (tuple, list) else ()


def symbol_local(name: str) -> str:
    """The local of replacement code that holds a size symbol."""
    return f".size_{name}"


# -- sources


def emit_source(emitter: Assembler, source: Source, objects: Mapping[str, Any]) -> None:
    """Push the object at `source`."""

    def inner(prefix: Source) -> None:
        emit_source(emitter, prefix, objects)

    match source:
        case Local(name):
            emitter.load_local(name)
        case Global(name, None) | Builtin(name):
            emitter.emit("LOAD_GLOBAL", (False, name))
        case Global(name, module):
            emitter.constant(sys.modules[str(module)].__dict__)
            emitter.constant(name)
            emitter.subscript()
        case Cell(name, None):
            emitter.load_free(name)
        case Cell(name, function):
            inner(function)
            emitter.call_function(rebuild.free_variable, name, arguments=1)
        case Attribute(prefix, name):
            inner(prefix)
            emitter.load_attribute(name)
        case Item(prefix, key):
            inner(prefix)
            emitter.call_function(rebuild.stored_item, key, arguments=1)
        case DictKey(prefix, index) | ValueAt(prefix, index):
            inner(prefix)
            emitter.call_function(rebuild.stored_items, arguments=1)
            for at in (index, int(isinstance(source, ValueAt))):
                emitter.constant(at)
                emitter.subscript()
        case HandleSource(name):
            emitter.constant(objects[name])
        case Reading("torch.Tensor.size" | "torch.Tensor.stride" as method, prefix, (dim,)) if prefix is not None:
            inner(prefix)
            emitter.call_function(getattr(torch.Tensor, method.rpartition(".")[2]), dim, arguments=1)
        case Reading(function, base, arguments) if base is not None:
            inner(base)
            emitter.call_function(objects[function], *map(to_python, arguments), arguments=1)
        case _:
            raise CannotRebuild(f"an object at {source}")
