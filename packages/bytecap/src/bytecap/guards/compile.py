"""Guard data -> the program of the C evaluator.

Sources become a tree with shared prefixes, each read once; each guard becomes a check on a node.
Types and objects that guards only name are looked up in the live frame that was captured.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType

import torch

from bytecap._evalframe import FrameView, GuardProgram
from bytecap.guards import native
from bytecap.guards.errors import GuardDoesNotHold, GuardError
from bytecap.guards.literals import to_python
from bytecap.guards.printing import print_source
from bytecap.guards.relations import postfix, relation_program
from stagewire import capture
from stagewire.capture import Guard, Source, Symbol
from stagewire.expr import Dim, Expr
from stagewire.types import TensorType

Scope = FrameView | Mapping[str, object]


class _Missing:
    """A source that has no value in the live frame."""


MISSING = _Missing()


def compile_guards(
    guards: Iterable[Guard],
    scope: Scope,
    *,
    objects: Mapping[str, object] | None = None,
    symbols: Iterable[Symbol] = (),
    inputs: Iterable[Source] = (),
    verify: bool = True,
) -> GuardProgram:
    """The program that says whether `guards` hold for a frame.

    `scope` is the frame that was captured (or a dict of locals); `objects` gives the objects that
    guards and `HandleSource` name, where the frame does not. `symbols` adds the sources and ranges
    of size symbols. The values at `inputs` are handed to the replacement code in a tuple, in this
    order, when the guards hold (see `hook.INPUTS`). With `verify`, guards that are false for `scope` itself raise
    GuardDoesNotHold. `program.guards` holds the guards, in the order of failure indices.

    >>> from stagewire.capture import Equals, Local
    >>> program = compile_guards([Equals(Local("n"), 3)], {"n": 3})
    >>> program.check({"n": 3}), program.check({"n": 4}), program.check({"n": True})
    (True, False, False)
    """
    builder = _Builder(scope, dict(objects or {}))
    for guard in guards:
        builder.add(guard)
    for symbol in symbols:
        builder.add_symbol(symbol)
    program = builder.build(tuple(inputs))
    if verify and not program.check(scope):
        from bytecap.guards.explain import explain

        raise GuardDoesNotHold(str(explain(program, scope)))
    return program


@dataclass
class _Node:
    parent: int
    fetch: str
    argument: object
    guard: int
    checks: list[tuple[str, object, int]] = field(default_factory=list)


class _Builder:
    """Collects nodes and guards first; `build` reads the live values and attaches the checks."""

    def __init__(self, scope: Scope, objects: dict[str, object]) -> None:
        self.scope = scope
        self.objects = objects
        self.guards: list[Guard] = []
        self.nodes: list[_Node] = []
        self.index: dict[Source | None, int] = {}
        self.symbols: dict[str, int] = {}
        self.symbol_sources: list[tuple[Symbol, int]] = []
        self.hidden: list[tuple[int, Dim, int]] = []
        self.hidden_count = 0
        self.live: tuple[object, ...] = ()

    # ---- sources ----------------------------------------------------------------------------

    def add(self, guard: Guard) -> None:
        self.guards.append(guard)
        match guard:
            case capture.Relation():
                return
            case capture.GlobalState():
                self.node(None)
            case capture.SameObject(first=first, second=second):
                self.node(first)
                self.node(second)
            case _:
                self.node(guard.source)

    def node(self, source: Source | None) -> int:
        """The node of a source (None: of the frame itself), made with its parents when new."""
        known = self.index.get(source)
        if known is not None:
            return known
        parent, fetch, argument = self.fetch(source)
        self.nodes.append(_Node(parent, fetch, argument, len(self.guards) - 1))
        self.index[source] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def fetch(self, source: Source | None) -> tuple[int, str, object]:
        match source:
            case None:
                return -1, "frame", None
            case capture.Local(name=name):
                return -1, "local", (name, self.slot(name))
            case capture.Global(name=name, module=module):
                return -1, "global", (name, _module_globals(module))
            case capture.Builtin(name=name):
                return -1, "builtin", (name, None)
            case capture.Cell(name=name, function=None):
                return -1, "cell", name
            case capture.Cell(name=name, function=function):
                return self.node(function), "cell", name
            case capture.Attribute(base=base, name=name):
                return self.node(base), "attribute", sys.intern(name)
            case capture.Item(base=base, key=key):
                return self.node(base), "item", key
            case capture.DictKey(base=base, index=index):
                return self.node(base), "dict_key", index
            case capture.DictValue(base=base, index=index):
                return self.node(base), "dict_value", index
            case capture.TypeOf(base=base):
                return self.node(base), "type_of", None
            case capture.Reading(function=function, base=base, arguments=arguments):
                call = (self.objects[function], tuple(to_python(argument) for argument in arguments))
                return -1 if base is None else self.node(base), "call", call
            case capture.HandleSource(name=name):
                if name not in self.objects:
                    raise GuardError(f"nobody gave the object of the handle {name!r}")
                return -1, "object", self.objects[name]
        raise GuardError(f"a source of unknown kind: {source!r}")

    def slot(self, name: str) -> int:
        if not isinstance(self.scope, FrameView):
            return -1
        code = self.scope.code
        varargs = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        count = code.co_argcount + code.co_kwonlyargcount + varargs
        arguments = code.co_varnames[:count]
        return arguments.index(name) if name in arguments else -1

    # ---- symbols ----------------------------------------------------------------------------

    def add_symbol(self, symbol: Symbol) -> None:
        """A symbol's own source, and its range as relations."""
        if symbol.source is not None and not _is_bound_by_tensor(symbol.source):
            self.guards.append(capture.Relation(Expr(symbol.name), "==", Expr(symbol.name)))
            self.symbol_sources.append((symbol, self.node(symbol.source)))
        if symbol.lower is not None:
            self.guards.append(capture.Relation(Expr(symbol.name), ">=", symbol.lower))
        if symbol.upper is not None:
            self.guards.append(capture.Relation(Expr(symbol.name), "<=", symbol.upper))

    def symbol_index(self, name: str) -> int:
        return self.symbols.setdefault(name, len(self.symbols))

    def dims(self, dims: tuple[Dim, ...], guard: int) -> tuple[int, ...]:
        """Sizes as the C evaluator wants them: -1-k binds symbol k. A compound expression binds a
        hidden symbol that a relation then compares with the expression."""
        found = []
        for dim in dims:
            if isinstance(dim, int):
                found.append(dim)
            elif dim.text.isidentifier():
                found.append(-1 - self.symbol_index(dim.text))
            else:
                hidden = self.symbol_index(f"{self.hidden_count} {dim.text}")
                self.hidden_count += 1
                self.hidden.append((hidden, dim, guard))
                found.append(-1 - hidden)
        return tuple(found)

    # ---- checks -----------------------------------------------------------------------------

    def build(self, inputs: tuple[Source, ...]) -> GuardProgram:
        input_nodes = tuple(self.node(source) for source in inputs)
        bare = tuple((n.parent, n.fetch, n.argument, (), n.guard) for n in self.nodes)
        self.live = GuardProgram(bare).values(self.scope, MISSING)
        for index, guard in enumerate(self.guards):
            if not isinstance(guard, capture.Relation):
                self.attach(index, guard)
        for symbol, node in self.symbol_sources:
            check = ("symbol", self.symbol_index(symbol.name), self.nodes[node].guard)
            self.nodes[node].checks.append(check)
        relations = [
            ((*postfix(dim, self.symbols), ("symbol", hidden), ("==", 0)), guard) for hidden, dim, guard in self.hidden
        ]
        relations += [
            (relation_program(guard, self.symbols), index)
            for index, guard in enumerate(self.guards)
            if isinstance(guard, capture.Relation)
        ]
        nodes = tuple((n.parent, n.fetch, n.argument, tuple(n.checks), n.guard) for n in self.nodes)
        return GuardProgram(nodes, tuple(relations), len(self.symbols), tuple(self.guards), input_nodes)

    def attach(self, index: int, guard: Guard) -> None:
        match guard:
            case capture.SameObject(first=first, second=second, same=same):
                low, high = sorted((self.index[first], self.index[second]))
                check = ("same" if same else "not_same", low)
                node = self.nodes[high]
                if low == high:
                    raise GuardError(f"{print_source(first)} is compared with itself")
            case capture.GlobalState():
                node, check = self.nodes[self.index[None]], ("state", _state(guard))
            case _:
                node = self.nodes[self.index[guard.source]]
                check = self.check(index, guard, self.live[self.index[guard.source]])
        node.checks.append((*check, index))

    def check(self, index: int, guard: Guard, live: object) -> tuple[str, object]:
        match guard:
            case capture.TypeIs(name=name):
                return "type_is", self.named_type(name, live, guard)
            case capture.IdentityIs(name=name):
                named = self.named_object(name, live, guard)
                if isinstance(named, FunctionType):
                    return "function", function_state(named)
                return identity_of(named)
            case capture.Equals(value=value):
                return "equals", to_python(value)
            case capture.LengthIs(length=length):
                return "length", length
            case capture.KeysAre(keys=keys):
                return "keys", tuple(to_python(key) for key in keys)
            case capture.HasKey(key=key, present=present):
                return ("has_key" if present else "lacks_key"), key
            case capture.HasAttribute(name=name, present=present):
                return ("has_attribute" if present else "lacks_attribute"), sys.intern(name)
            case capture.TensorIs():
                return "tensor", self.tensor(index, guard, live)
        raise GuardError(f"a guard of unknown kind: {guard!r}")

    def named_object(self, name: str, live: object, guard: Guard) -> object:
        found = self.objects.get(name, live)
        if found is MISSING:
            raise GuardError(_no_value(guard))
        return found

    def named_type(self, name: str, live: object, guard: Guard) -> type:
        named = self.objects.get(name)
        if isinstance(named, type):
            return named
        if live is MISSING:
            raise GuardError(_no_value(guard))
        actual = type(live)
        if actual.__qualname__.rpartition(".")[2] != name.rpartition(".")[2]:
            raise GuardDoesNotHold(f"the type of {print_source(guard.source)} is {actual.__qualname__}, not {name}")
        return actual

    def tensor(self, index: int, guard: capture.TensorIs, live: object) -> tuple[object, ...]:
        if not isinstance(live, torch.Tensor):
            raise GuardError(f"{print_source(guard.source)} is not a tensor in the captured frame")
        expected: TensorType = guard.type
        device = torch.device(expected.device)
        if live.device.type == device.type and device.index is None:
            device = live.device
        return (
            self.named_type(guard.type_name, live, guard),
            native.DTYPE_CODES[expected.dtype],
            native.dispatch_keys(live),
            *native.device_code(device),
            expected.requires_grad,
            -1 if guard.is_leaf is None else int(guard.is_leaf),
            self.dims(expected.shape, index),
            self.dims(expected.stride, index),
            native.DTYPES_BY_NAME[expected.dtype],
            device,
        )


def identity_of(value: object) -> tuple[str, object]:
    """The check that a value is this one; it keeps classes and modules alive, and what cannot be referred to weakly."""
    if isinstance(value, (type, ModuleType)) or not type(value).__weakrefoffset__:
        return "identity", value
    return "weak_identity", weakref.ref(value)


def function_state(function: FunctionType) -> tuple[object, ...]:
    """What calling `function` depends on besides its arguments, globals and cells.

    (weak reference to it, code, defaults, keyword defaults, a copy of these); the last three may be None.
    """
    keywords = function.__kwdefaults__
    copy = None if keywords is None else dict(keywords)
    return weakref.ref(function), function.__code__, function.__defaults__, keywords, copy


def _is_bound_by_tensor(source: Source) -> bool:
    """Sizes and strides of tensors get their symbols from the guard on the tensor."""
    return isinstance(source, capture.Reading) and source.function in ("torch.Tensor.size", "torch.Tensor.stride")


def _no_value(guard: Guard) -> str:
    where = print_source(guard.source)
    return f"{where} has no value in the captured frame that can be read without running user code"


def _module_globals(name: str | None) -> dict[str, object] | None:
    if name is None:
        return None
    module = sys.modules.get(name)
    if module is None:
        raise GuardError(f"the module {name!r} is not imported")
    return vars(module)


def _state(guard: capture.GlobalState) -> tuple[object, ...]:
    """The expected modes; dispatch keys and torch function modes are those of this moment."""
    now = native.read_state()
    autocast = dict(guard.autocast)
    codes = [native.DTYPE_CODES[autocast[d]] if d in autocast else -1 for d in ("cpu", "cuda")]
    return (
        guard.grad_enabled,
        guard.inference_mode,
        native.DTYPE_CODES[guard.default_dtype],
        guard.deterministic,
        *now[4:7],
        *codes,
    )
