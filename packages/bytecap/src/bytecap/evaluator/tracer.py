"""The state of one capture: graph, guards, known objects, frames, side effects."""

from __future__ import annotations

import builtins
import contextlib
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from io import IOBase
from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractMode, AbstractTensor, DataDependentError, Meta
from absint.data_sizes import DataSizedMode
from absint.errors import UnsupportedTensor
from absint.symbolic import SizeFloat
from absint.wire import to_arg
from bytecap._evalframe import TENSOR_MAX_RANK
from bytecap.bytecode.builtin_parts import stored_items
from bytecap.errors import LoopTooLong, UnsupportedCall, UnsupportedValue
from bytecap.evaluator.evaluate import Evaluate
from bytecap.evaluator.wrapping import set_of, wrap_object
from bytecap.graph.builder import GraphBuilder, tensor_type
from bytecap.graph.input_names import input_role, source_hint
from bytecap.graph.outside_history import Outside
from bytecap.graph.size_policy import SizePolicy
from bytecap.graph.size_symbols import SizeSymbols
from bytecap.guards import print_source
from bytecap.guards.global_sources import Places
from bytecap.guards.guard_set import GuardSet, Names, is_exempt, is_watched
from bytecap.guards.process_state import torch_modes
from bytecap.nodes.data_checks import Checks
from bytecap.nodes.known_contents import note_buffer
from bytecap.objects.arrays import ArrayValue, is_array
from bytecap.objects.base import Value
from bytecap.objects.cells import CellValue
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.classes import ClassValue
from bytecap.objects.constant import LITERALS, TORCH_CONSTANTS, Constant
from bytecap.objects.data_numbers import HostFloat
from bytecap.objects.deques import DequeValue
from bytecap.objects.dynamic_sources import refuse_changing
from bytecap.objects.exceptions import ExceptionValue, TracebackValue
from bytecap.objects.float_inputs import GivenFloats
from bytecap.objects.functions import FunctionValue, MethodValue
from bytecap.objects.hash_keys import Identity, UserKey
from bytecap.objects.identity import IdentityToken
from bytecap.objects.iterators import GeneratorValue, HostIterator
from bytecap.objects.mappings import DICT_TYPES, DictValue, DictView
from bytecap.objects.nn_modules import NNModuleValue
from bytecap.objects.objects import ObjectValue
from bytecap.objects.opaque import OpaqueValue, UnguardedValue, UnknownValue
from bytecap.objects.open_constants import OpenConstant
from bytecap.objects.sequences import ListValue, SliceValue, TupleValue
from bytecap.objects.sets import SetValue
from bytecap.objects.signals import PythonRaise
from bytecap.objects.symbolic_numbers import SymbolicFloat, SymbolicInt, is_size, write_float
from bytecap.objects.tensor_classes import is_plain_class
from bytecap.objects.tensors import TensorValue
from bytecap.objects.writes import ClassWrites, TensorWrites
from bytecap.semantics.attributes import bind
from stagewire.capture import (
    Attribute,
    Builtin,
    Global,
    HandleSource,
    HasAttribute,
    InputRole,
    Item,
    Reading,
    Source,
    TypeOf,
)
from stagewire.graph import Arg, Ref, SourceLine

if TYPE_CHECKING:
    from bytecap.evaluator.frame import Frame

FRAME_LIMIT = 200
_FIXED = SizePolicy(enabled=False)
ITERATION_LIMIT = 50_000
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
# Numbers and texts with a class of their own (members of an IntEnum), as the numbers and texts that they are.
_PLAIN = ((int, int.__pos__), (float, float.__pos__), (str, str.__str__))
# Values that are the same object wherever they are read: immutable, or cheap to make again.
_NOT_SHARED = (
    *LITERALS,
    tuple,
    torch.Size,
    slice,
    range,
    types.MethodType,
    types.BuiltinFunctionType,
    torch.SymInt,
    torch.SymFloat,
)

# Kinds of constants of which there may be several equal objects.
_COPIED = frozenset({int, float, complex, str, bytes, range})


_DICT_VIEWS = {
    type(getattr(cls(), what)()): what for cls in (dict, OrderedDict) for what in ("keys", "values", "items")
}


class Tracer:
    """Everything that one capture knows; abstract values take it as their first argument.

    changing: where numbers are that the capture must not fix. assumes: whether it may assume that data raises nothing.
    made: inputs that the replacement makes, by its locals: their names in the graph, and how. policy: which sizes are
    symbols.
    """

    evaluate = Evaluate

    def __init__(
        self, changing: frozenset[Source] = frozenset(), policy: SizePolicy = _FIXED, *, assumes: bool = True
    ) -> None:
        self.changing = changing
        self.checks = Checks(assumes)
        self.sizes = SizeSymbols(policy, self.line)
        self.graph = GraphBuilder()
        self.floats = self.sizes.env.given = GivenFloats(self)
        self.names = Names()
        self.guards = GuardSet(self.names)
        self.places = Places(self.names)
        self.mode = DataSizedMode(self._size_of_data) if policy.of_data else AbstractMode()
        self.modes = torch_modes()
        self.frames: list[Frame] = []
        self.frame_globals: DictValue | None = None
        self.iterations = 0
        self.fault: tuple[Exception, SourceLine] | None = None
        self.handled: list[Value] = []
        self.effects: list[Any] = []
        self.arrays: list[ArrayValue] = []
        self.regions: list[Value] = []
        self.index_modes: list[Value] = []
        self.numbers_in_buffers: dict[Source, AbstractTensor] = {}
        self.inference: str | None = None
        self.settings: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self.made: dict[str, tuple[str, Callable[[], torch.Tensor]]] = {}
        self.class_writes: dict[type, ClassWrites] = {}
        self.tensor_writes: dict[int, TensorWrites] = {}
        self.generators: list[GeneratorValue] = []
        self.hooked: list[Any] = []
        self.hook_cells: list[tuple[CellValue, Value]] = []
        self.tensors: dict[int, TensorValue] = {}
        self._by_object: dict[int, Value] = {}
        self._dicts: dict[int, DictValue] = {}
        self._cells: dict[int, CellValue] = {}
        self._alive: list[Any] = []
        self._no_hooks: set[str] = set()
        self._computed: dict[Source, Any] = {}
        self._hashed: dict[Value, None] = {}
        self._looked_up: set[tuple[int, str]] = set()

    def close(self) -> None:
        """Let go of all values: in cycles with the tracer and each other they would keep the call's objects alive."""
        for value in self._by_object.values():
            if isinstance(value, ObjectValue):
                value.attributes.owner = None
        self.fault = self.frame_globals = None
        self.sizes.close()
        self.floats.close()
        for known in (self._by_object, self._dicts, self._cells, self.tensors, self.class_writes, self._hashed):
            known.clear()
        for row in (
            self._alive,
            self.frames,
            self.handled,
            self.effects,
            self.regions,
            self.index_modes,
            self.generators,
            self.arrays,
            self.hooked,
        ):
            row.clear()

    # -- real objects to values

    def wrap(self, real: Any, source: Source | None) -> Value:
        """The value of a real object; one value per object, so that identity is kept."""
        if source is not None and TypeOf(source) in self.changing:
            return UnguardedValue(real, source, f"the class of {print_source(source)} differs")
        if isinstance(real, _NOT_SHARED):
            return wrap_object(self, real, source)
        known = self._by_object.get(id(real))
        if known is not None:
            if source is not None:
                self._guard_again(known, real, source)
            return known
        value = wrap_object(self, real, source)
        self._by_object[id(real)] = value
        self._alive.append(real)
        return value

    def _guard_again(self, known: Value, real: Any, source: Source) -> None:
        """A second path to a known object: it must lead to the same object again."""
        if isinstance(real, (type, types.ModuleType)) or (known.source is None and isinstance(known, FunctionValue)):
            self.guards.identity(source, real, self.line())
        elif known.source is not None and known.source != source:
            self.guards.same(known.source, source, True, self.line())
        elif known.source is None:
            self.guards.identity(source, real, self.line())

    def fresh(self, real: Any) -> Value:
        """The value of an object that a host call just made: containers belong to the evaluated program."""
        kind = type(real)
        if kind is list:
            return ListValue([self.fresh(item) for item in real])
        if kind is deque:
            return DequeValue([self.fresh(item) for item in real], maxlen=real.maxlen)
        if is_array(real):
            self.arrays.append(ArrayValue(real))
            return self.arrays[-1]
        if isinstance(real, tuple):
            return TupleValue([self.fresh(item) for item in real], cls=kind)
        if kind in DICT_TYPES:
            made = DictValue(cls=kind)
            for key, item in real.items():
                made.set_item(self, self.wrap(key, None), self.fresh(item))
            return made
        if kind in _DICT_VIEWS:
            return DictView(self.fresh(OrderedDict(real.mapping)), _DICT_VIEWS[kind])  # type: ignore[arg-type]
        if kind in (set, frozenset):
            return set_of(self, real, kind, None).as_new()
        if isinstance(real, Iterator) and not isinstance(real, IOBase):
            return HostIterator(self.fresh(item) for item in real)
        return self.wrap(real, None)

    def constant(self, real: Any) -> Value:
        """A constant of a code object; a tuple is one object, however often it is loaded."""
        if type(real) is not tuple:
            return self.fresh(real)
        known = self._by_object.get(id(real))
        if known is None:
            known = self._by_object[id(real)] = TupleValue([self.constant(item) for item in real], real=real)
        return known

    def new_dict(self, items: dict[str, Value]) -> DictValue:
        """A new dict with string keys."""
        made = DictValue()
        made.new = {self.hash_key(key): (key, v) for key, v in ((Constant(k), v) for k, v in items.items())}
        return made

    def new_set(self, members: list[Value]) -> SetValue:
        """A new set."""
        made = SetValue({})
        for member in members:
            made.add(self, member)
        return made

    def new_object(self, cls: type) -> ObjectValue:
        """A new instance of a Python class, before its `__init__`."""
        return (NNModuleValue if issubclass(cls, torch.nn.Module) else ObjectValue)(cls)

    def hash_key(self, value: Value) -> Hashable:
        """A host key (see `keys`) of a value."""
        if isinstance(value, Constant):
            return run_hash(self, value.value)
        if isinstance(value, TupleValue):
            return tuple(self.hash_key(item) for item in value.values(self))
        if isinstance(value, SetValue) and value.cls is frozenset:
            return frozenset(value.members)
        if isinstance(value, ObjectValue):
            return self._object_key(value)
        if value.python_type().__hash__ is None:
            raise self.raises(TypeError, f"unhashable type: '{value.python_type().__name__}'")
        if isinstance(value, SliceValue):
            raise self.raises(TypeError, "unhashable type: 'slice'")
        if isinstance(value, OpaqueValue):
            return run_hash(self, value.real)
        if isinstance(value, IdentityToken):
            return Identity(value.real)
        if isinstance(value, MethodValue):
            return types.MethodType, self._identity_key(value.receiver), self.hash_key(value.function)
        if isinstance(value, UnknownValue) and value.python_type().__hash__ is not object.__hash__:
            raise UnsupportedValue(f"the hash of a {value.describe()} from outside the frame")
        return self._identity_key(value)

    def _identity_key(self, value: Value) -> Identity:
        return Identity(self.identified(value))

    def identified(self, value: Value) -> Any:
        """What stands for the identity of an object; objects from outside stay as many: see `guard_hashed`."""
        if value.source is not None and not isinstance(value, Constant):
            self._hashed[value] = None
        real = getattr(value, "real", None)
        return value if real is None else real

    def _object_key(self, value: ObjectValue) -> Hashable:
        raw, owner = static_lookup(value.cls.__mro__, "__hash__")
        if raw is None:
            raise self.raises(TypeError, f"unhashable type: '{value.cls.__name__}'")
        if isinstance(raw, types.FunctionType):
            method = bind(self, raw, owner or object, value, value.cls, "__hash__")
            return UserKey(self, value, _hash_number(self, method.call(self, [], {})))
        if isinstance(value.base, (Constant, TupleValue)) and not isinstance(value, ExceptionValue):
            return self.hash_key(value.base)
        return self._identity_key(value)

    # -- sources

    def attribute_source(self, source: Source | None, name: Any) -> Source | None:
        """Where attribute `name` of the object at `source` is read."""
        return None if source is None or not isinstance(name, str) else Attribute(source, name)

    def class_source(self, owner: type, name: str) -> Source | None:
        """Where a class attribute is read; None for library classes, which are taken to stay as they are.

        Enum classes of CPython 3.11 too: their metaclass answers for their attributes in Python, which no guard runs.
        """
        if not is_watched(owner.__module__) or hasattr(type(owner), "__getattr__"):
            return None
        return Attribute(self.places.of(owner), name)

    def guard_lookup(self, cls: type, name: str) -> None:
        """Looking `name` up in `cls` finds what it finds now, or nothing as now."""
        if (id(cls), name) in self._looked_up:
            return
        if cls is not torch.Tensor and (not is_watched(cls.__module__) or hasattr(type(cls), "__getattr__")):
            return
        self._looked_up.add((id(cls), name))
        self._alive.append(cls)
        raw, owner = static_lookup(cls.__mro__, name)
        place = self.places.of(cls)
        if owner is not None:
            source = Attribute(place, name)
            is_method = isinstance(raw, classmethod)
            found = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
            self.guards.identity(Attribute(source, "__func__") if is_method else source, found, self.line())
        elif static_lookup(type(cls).__mro__, name)[1] is None:
            self.guards.add(HasAttribute(place, name, False, self.line()))

    def reading(self, function: Any, base: Source | None) -> Source | None:
        """Where what a C function without side effects returns for the object at `base` is read."""
        return None if base is None else Reading(self.names.of(function), base)

    def guard_reading(self, function: Any, arguments: tuple[Any, ...], value: Any, base: Source | None = None) -> None:
        """A C function without side effects returns `value` again (literals only)."""
        if (
            isinstance(function, _C_FUNCTIONS)
            and isinstance(value, (*LITERALS, torch.device, *TORCH_CONSTANTS))
            and not isinstance(value, bytes)
        ):
            source = Reading(self.names.of(function), base, tuple(to_arg(argument) for argument in arguments))
            self.guard_literal(source, value)

    def guard_bases(self, cls: type) -> None:
        """A class of the user's has the bases that it has now."""
        if is_watched(cls.__module__) and not hasattr(type(cls), "__getattr__"):
            self.guards.identity(Attribute(self.places.of(cls), "__mro__"), cls.__mro__, self.line())

    def guard_class_lacks(self, cls: type, name: str) -> None:
        """No class of an object has an attribute of this name; what the metaclass has (`__name__`) is not looked at."""
        if static_lookup(type(cls).__mro__, name)[1] is not None or hasattr(type(cls), "__getattr__"):
            return
        if not is_exempt(cls.__module__) and static_lookup(cls.__mro__, name)[1] is None:
            self.guards.add(HasAttribute(self.places.of(cls), name, False, self.line()))

    def guard_tensor_lacks(self, source: Source | None, name: str) -> None:
        """An outside tensor has no attribute of its own of this name."""
        if source is not None:
            self.guards.add(HasAttribute(source, name, False, self.line()))

    def globals_of(self, function: types.FunctionType) -> DictValue:
        """The module-level names that a function reads."""
        return self.module_dict(function.__globals__)

    def module_names(self, module: types.ModuleType) -> DictValue:
        """The names of a Python module."""
        return self.module_dict(module.__dict__)

    def module_dict(self, names: dict[str, Any]) -> DictValue:
        """The shadow of a module's dictionary; one per dictionary."""
        known = self._dicts.get(id(names))
        if known is None:
            known = self._dicts[id(names)] = self._new_module_dict(names)
        return known

    def _new_module_dict(self, names: dict[str, Any]) -> DictValue:
        module = names.get("__name__")
        if is_exempt(module):
            return DictValue(real=names, item_source=lambda key, index: self._library_source(names, key))
        base = self.places.of(names)
        if not isinstance(base, HandleSource):
            return DictValue(real=names, source=base, item_source=lambda key, index: Global(key, module))
        return DictValue(real=names, source=base, item_source=lambda key, index: Item(base, key))

    def _library_source(self, names: dict[str, Any], key: Any) -> Source | None:
        """Where a name of a library is read: its functions and classes may be replaced, its data only changes for
        code of the user (a library is taken to know what it does)."""
        module = names.get("__name__")
        loaded = sys.modules.get(module) if isinstance(module, str) else None
        if loaded is None or loaded.__dict__ is not names or not isinstance(key, str):
            return None
        is_code = isinstance(names[key], (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType))
        if is_code or (self.frames and not is_exempt(_module_of(self.frames[-1]))):
            return Global(key, module)
        return None

    def set_frame_globals(self, names: dict[str, Any]) -> DictValue:
        """The shadow of the captured frame's own globals."""
        base = self.places.of(names)
        shadow = DictValue(real=names, source=base, item_source=lambda key, index: Global(key))
        self._dicts[id(names)] = self.frame_globals = shadow
        return shadow

    def builtin(self, name: str) -> Value:
        """A builtin, which no global of the captured frame hides."""
        real = getattr(builtins, name)
        self.guards.identity(Builtin(name), real, self.line())
        return self.wrap(real, None)

    def cell(self, real: types.CellType, source: Source | None, place: Source | None = None) -> CellValue:
        """The shadow of an outside cell; one per cell. place: where it is found, if another may be there next time."""
        known = self._cells.get(id(real))
        if known is None:
            known = self._cells[id(real)] = CellValue(real=real, source=source)
            known.place = place
            self._alive.append(real)
        elif place is not None and known.place is not None and known.place != place:
            self.guards.same(known.place, place, True, self.line())
        return known

    # -- tensors

    def input_tensor(self, real: torch.Tensor, source: Source | None) -> TensorValue:
        """A tensor from outside as a graph input."""
        if not is_plain_class(type(real)):
            raise UnsupportedValue(f"a tensor of class {type(real).__qualname__}")
        if real.is_nested:
            raise UnsupportedValue("a nested tensor")
        if real.dim() > TENSOR_MAX_RANK:
            raise UnsupportedValue(f"a tensor of more than {TENSOR_MAX_RANK} dimensions")
        if real.is_conj() or real.is_neg():
            raise UnsupportedValue("a conjugate or negative view, whose memory holds other values")
        try:
            role: InputRole = "constant" if source is None else input_role(real, source)
            abstract = self._abstract(real, None if source is None else self.sizes.meta_of(real, source, role))
        except UnsupportedTensor as error:
            raise UnsupportedValue(error.message) from None
        type_ = tensor_type(abstract)
        if source is None:
            source = self.places.handle(real)
        else:
            self.guards.tensor(source, type_, real, self.line())
        name = self.graph.add_input(source_hint(source), type_, source, role)
        value = TensorValue(abstract, name, cls=type(real), real=real, role=role, source=source)
        self.tensors[id(abstract)] = value
        if role == "buffer":
            note_buffer(value, self)
        return value

    def input_number(self, real: int | float, source: Source) -> Value | None:
        """A number from outside as a symbol, where it is known to change."""
        if isinstance(real, float):
            found = self.floats.find(real, source, self.sizes.policy)
            return None if found is None else SymbolicFloat(found)
        size = self.sizes.number(real, source)
        if size is None:
            return None
        self.guards.type_is(source, int, self.line())
        self.graph.add_number(str(size), source)
        return SymbolicInt(size, source)

    def size_at(self, number: int, source: Source) -> Any:
        """An int that is computed of other numbers, as a size of its own."""
        size = self._computed.get(source)
        if size is None:
            size = self._computed[source] = self.sizes.computed(number, source)
            self.graph.add_number(str(size), source)
        return size

    def _abstract(self, real: torch.Tensor, meta: Meta | None) -> AbstractTensor:
        lifted = self.mode.lift(real)
        if meta is not None:
            lifted = AbstractTensor(meta, lifted.storage_record)
        # The content of an input may differ in the next call: nothing may be concluded from it.
        lifted.storage_record.constant = None
        if not real.requires_grad:
            return lifted
        abstract = AbstractTensor(lifted.meta, lifted.storage_record, requires_grad=True)
        if real.is_leaf:
            return abstract
        with torch.enable_grad():
            # Function.apply itself is Python that looks for functorch wrappers; this is what it calls.
            return super(torch.autograd.Function, Outside).apply(abstract)

    def _size_of_data(self, lower: int | None, upper: int | None) -> Any:
        """A new symbol for a size that data decides."""
        if self.graph.is_body:
            raise DataDependentError("a size inside a function of the graph depends on data")
        return self.sizes.create_unknown(self.graph.name("count"), lower, upper)

    def tensor_of(self, abstract: AbstractTensor, name: str) -> TensorValue:
        """The value of a node's result; an input that an in-place op returns stays itself."""
        known = self.tensors.get(id(abstract))
        if known is None:
            known = self.tensors[id(abstract)] = TensorValue(abstract, name)
        return known

    def wire_argument(self, host: Any) -> Arg:
        """A host argument that is no plain data as document data."""
        if isinstance(host, AbstractTensor):
            known = self.tensors.get(id(host))
            if known is None:
                raise UnsupportedValue("a tensor that was made outside the captured graph")
            return Ref(known.name)
        if isinstance(host, range):
            return to_arg(list(host))
        if isinstance(host, HostFloat):
            return Ref(host.name)
        if isinstance(host, SizeFloat):
            return write_float(self, host)
        for kind, plain in _PLAIN:
            if isinstance(host, kind):
                return to_arg(plain(host))
        return NotImplemented  # type: ignore[return-value]

    # -- guards

    def guard_literal(self, source: Source, real: Any, line: SourceLine | None = None) -> None:
        """source == real, and of the same type; line: where it is read, if not here."""
        line = line or self.line()
        if isinstance(real, bytes):
            self.guards.identity(source, real, line)
        elif real is None:
            self.guards.identity(source, None, line)
        else:
            self.guards.equals(source, to_arg(real), line)

    def open_constant(self, real: Any, source: Source) -> OpenConstant:
        """A number or text from outside: its class is guarded, and the value as soon as it is asked for."""
        line = self.line()
        self.guards.class_unless_value(source, type(real), line)
        if source in self.changing:
            return OpenConstant(real, source, pin=lambda: refuse_changing(source, real))
        return OpenConstant(real, source, pin=lambda: self.guard_literal(source, real, line))

    def guard_distinct(self, left: Value, right: Value, line: SourceLine | None) -> None:
        """`left is not right`, for two outside objects of one class; constants are guarded by value."""
        first, second = left.source, right.source
        if first is None or second is None or isinstance(left, Constant) or isinstance(right, Constant):
            return
        if left.python_type() is right.python_type():
            self.guards.same(first, second, False, line)

    def guard_identity(self, left: Value, right: Value, same: bool, line: SourceLine | None) -> None:
        """Whether `left is right`: immutable objects of one value may be one object in one call and two in another."""
        first, second = left.source, right.source
        if isinstance(left, Constant) and isinstance(right, Constant):
            may_differ = left.python_type() is right.python_type() in _COPIED and not (is_size(left) or is_size(right))
            if may_differ and first is not None and second is not None and left.value == right.value:
                self.guards.same(first, second, same, line)
        elif not same:
            self.guard_distinct(left, right, line)
        elif isinstance(left, TupleValue) and isinstance(right, TupleValue) and left is not right:
            if first is not None and second is not None:
                self.guards.same(first, second, True, line)
            elif first is not None or second is not None:
                self.guards.identity(first or second, left.real, line)

    def guard_key(self, shadow: DictValue, key: Any, *, present: bool) -> None:
        """Whether `key` is in an outside dict."""
        if shadow.source is None:
            return
        self._check_settled(shadow)
        if type(key) in LITERALS and not isinstance(key, (bytes, complex)):
            self.guards.has_key(shadow.source, key, present, self.line())
        else:
            self.guard_keys(shadow)

    def guard_length(self, shadow: DictValue) -> None:
        """The number of items of an outside dict."""
        if shadow.source is not None and shadow.real is not None:
            self._check_settled(shadow)
            self.guards.length(shadow.source, dict.__len__(shadow.real), self.line())

    def guard_keys(self, shadow: DictValue) -> None:
        """The keys of an outside dict, in order."""
        from stagewire.capture import DictKey

        if shadow.source is None or shadow.real is None:
            return
        self._check_settled(shadow)
        keys = [key for key, _ in stored_items(shadow.real)]
        if all(type(key) in LITERALS and not isinstance(key, (bytes, complex)) for key in keys):
            self.guards.keys(shadow.source, tuple(to_arg(key) for key in keys), self.line())
            return
        self.guards.length(shadow.source, len(keys), self.line())
        for index, key in enumerate(keys):
            self.wrap(key, DictKey(shadow.source, index))  # such a place is fixed at once

    def _check_settled(self, shadow: DictValue) -> None:
        if shadow.source in self.changing:
            refuse_changing(shadow.source, shadow.real, "the content of ")

    def guard_set(self, source: Source, real: Any) -> None:
        """The members of an outside set."""
        self.guards.type_is(source, type(real), self.line())
        for member in real:
            if type(member) not in LITERALS or isinstance(member, (bytes, complex)):
                raise UnsupportedValue(f"an outside set with a {type(member).__name__} in it")
        self.guards.keys(source, tuple(to_arg(member) for member in real), self.line())

    def guard_written(self) -> None:
        """A tensor that the graph writes into is no other input as well, where a caller could pass it twice.

        (Tensors that modules hold are where their registries have them: they are not compared with each other.)
        """
        inputs = [tensor for tensor in self.tensors.values() if tensor.role != "result" and tensor.source is not None]
        for alike in _alike(inputs):
            if any(tensor.role == "tensor" for tensor in alike):
                written = {id(tensor) for tensor in alike if tensor.abstract.storage_record.version}
                self._guard_apart({id(tensor): tensor.source for tensor in alike}, written)

    def guard_changed(self) -> None:
        """An outside object that the program changes is none of the others that it looks at."""
        places = {id(cell): cell.place for cell in self._cells.values()}
        self._guard_apart(places, {id(effect) for effect in self.effects})
        owners = [getattr(effect, "owner", None) or effect for effect in self.effects]
        changed = {id(value): value for value in owners if isinstance(value, Value) and _has_place(value)}
        alike: dict[type, dict[int, Source | None]] = {value.python_type(): {} for value in changed.values()}
        others = {id(value): value for value in self._by_object.values()} if changed else {}
        for number, value in {**changed, **others}.items():
            is_registry = isinstance(value.source, Attribute) and value.source.name.startswith("_")
            is_compared = number in changed or (_has_place(value) and not is_registry)
            if is_compared and value.python_type() in alike:
                alike[value.python_type()][number] = value.source
        for sources in alike.values():
            self._guard_apart(sources, set(changed))

    def guard_hashed(self) -> None:
        """Outside objects that were hashed by their identity are as many as they were.

        (Modules, and tensors that modules hold, are where the registries have them: they are not compared.)
        """
        alike: dict[type, dict[int, Source | None]] = {}
        for value in self._hashed:
            if not isinstance(value, NNModuleValue) or not _is_held(value):
                alike.setdefault(value.python_type(), {})[id(value)] = value.source
        free = {id(value) for value in self._hashed if not _is_held(value)}
        for sources in alike.values():
            self._guard_apart(sources, free)

    def _guard_apart(self, sources: dict[int, Source | None], apart: set[int]) -> None:
        """Those of these objects, by their numbers, that are `apart`: different from each other and from the rest."""
        known = {number: source for number, source in sources.items() if source is not None}
        self.guards.distinct(
            [source for number, source in known.items() if number in apart],
            [source for number, source in known.items() if number not in apart],
        )

    def global_hooks(self, hooks: dict[Any, Any], name: str) -> bool:
        """Whether a global nn.Module hook is registered; guards that there is none."""
        if not hooks and name not in self._no_hooks:
            self._no_hooks.add(name)
            self.guards.length(Global(name, "torch.nn.modules.module"), 0, self.line())
        return bool(hooks)

    def check_generators(self) -> None:
        """No generator is left where it would still clean up: CPython does that when it drops the generator."""
        for generator in self.generators:
            if generator.cleans_up():
                name = generator.frame.function.code.co_qualname
                raise UnsupportedCall(f"generator {name} is left within a try or with statement")

    # -- frames and errors

    @contextlib.contextmanager
    def entering(self, frame: Frame) -> Iterator[None]:
        """Run a frame on top of the others."""
        if len(self.frames) >= FRAME_LIMIT:
            raise UnsupportedCall(f"more than {FRAME_LIMIT} nested calls")
        self.frames.append(frame)
        try:
            yield
        finally:
            self.frames.pop()

    def line(self) -> SourceLine:
        """The innermost line that is the user's (no file of torch), else the innermost."""
        for frame in reversed(self.frames):
            if not is_exempt(_module_of(frame)):
                return _line_of(frame)
        return _line_of(self.frames[-1]) if self.frames else SourceLine("<unknown>", 0)

    def module(self) -> str | None:
        """The module of the innermost frame."""
        return _module_of(self.frames[-1])

    def count_iteration(self) -> None:
        """One more turn of a loop of the evaluated program."""
        self.iterations += 1
        if self.iterations > ITERATION_LIMIT:
            raise LoopTooLong(f"more than {ITERATION_LIMIT} turns of loops")

    def note_fault(self, error: Exception) -> None:
        """Remember the user's line where an exception left the innermost frame."""
        if self.fault is None or self.fault[0] is not error:
            self.fault = error, self.line()

    def raises(self, cls: type, *args: Any) -> PythonRaise:
        """An exception of the evaluated program; raise the result."""
        values = [arg if isinstance(arg, Value) else self.wrap(arg, None) for arg in args]
        return self.raising(ExceptionValue(cls, values))

    def raising(self, value: Value) -> PythonRaise:
        """The raise of an exception instance: what is being handled becomes its context."""
        if isinstance(value, ExceptionValue):
            value.note_raise(self)
            if self.handled:
                value.follow(self.handled[-1])
        return PythonRaise(value)

    def traceback(self) -> TracebackValue:
        """The traceback of what is raised now."""
        return TracebackValue(_line_of(self.frames[0]).line)

    def raises_real(self, error: Exception) -> PythonRaise:
        """The exception that a host call raised, in the evaluated program."""
        made = self.raises(type(error), *error.args)
        for name in ("name", "obj"):
            if isinstance(error, (AttributeError, NameError, ImportError)) and hasattr(error, name):
                made.value.given[1][name] = self.wrap(getattr(error, name), None)  # type: ignore[attr-defined]
        return made

    def as_raise(self, args: list[Value]) -> PythonRaise:
        """The exception meant by generator.throw(type[, value[, traceback]])."""
        first = args[-2] if len(args) == 3 and isinstance(args[1], ExceptionValue) else args[0]
        if isinstance(first, ExceptionValue):
            return self.raising(first)
        kind = first.concrete() if isinstance(first, ClassValue) else None
        if kind is None or not issubclass(kind, BaseException):
            complaint = "exceptions must be classes or instances deriving from BaseException, not "
            raise self.raises(TypeError, complaint + first.python_type().__name__)
        has_value = len(args) > 1 and args[1].python_type() is not type(None)
        return self.raising(first.call(self, [args[1]] if has_value else [], {}))


def _hash_number(tracer: Tracer, value: Value) -> int:
    """What `__hash__` gave, as hash() gives it; one number for all where it is an address."""
    if not isinstance(value, Constant):
        return 0
    if not isinstance(value.value, int):
        raise tracer.raises(TypeError, "__hash__ method should return an integer")
    number = int(value.value)
    if abs(number) > sys.maxsize:
        return hash(number)
    # CPython keeps -1 for errors.
    return -2 if number == -1 else number


def run_hash(tracer: Tracer, real: Any) -> Hashable:
    """The object itself if it is hashable; else TypeError in the evaluated program."""
    try:
        hash(real)
    except TypeError as error:
        raise tracer.raises_real(error) from None
    return real


def _has_place(value: Value) -> bool:
    """Whether an object is read somewhere, and known by its identity."""
    return value.source is not None and not isinstance(value, Constant)


def _alike(tensors: list[TensorValue]) -> list[list[TensorValue]]:
    """The tensors, apart where their types say that two are never one, whatever the sizes."""
    metas = [tensor.abstract.meta for tensor in tensors]
    symbolic = {(meta.dtype, meta.ndim) for meta in metas if any(type(size) is not int for size in meta.shape)}
    found: dict[tuple[Any, ...], list[TensorValue]] = {}
    for tensor, meta in zip(tensors, metas, strict=True):
        sizes = () if (meta.dtype, meta.ndim) in symbolic else tuple(meta.shape)
        found.setdefault((meta.dtype, meta.ndim, *sizes), []).append(tensor)
    return list(found.values())


def _module_of(frame: Frame) -> str | None:
    names = frame.globals.real
    return None if names is None else names.get("__name__")


def _line_of(frame: Frame) -> SourceLine:
    code = frame.function.code
    line = frame.current.line if frame.current is not None else code.co_firstlineno
    return SourceLine(code.co_filename, line, code.co_qualname)


def _is_held(value: Value) -> bool:
    """Whether it is a module or tensor that a module holds."""
    if isinstance(value, NNModuleValue):
        return isinstance(value.source, (Attribute, Item))
    return isinstance(value, TensorValue) and value.role != "tensor"
