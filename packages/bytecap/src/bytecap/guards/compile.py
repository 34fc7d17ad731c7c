"""Guard data -> the program of the C evaluator.

Sources become a tree with shared prefixes, each read once; each guard becomes a check on a node.
Types and objects that guards only name are looked up in the live frame that was captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from bytecap._evalframe import OPERATIONS, FrameView, GuardProgram
from bytecap.bytecode.decode import argument_names
from bytecap.errors import GuardDoesNotHold, GuardError
from bytecap.guards import native
from bytecap.guards.explain import explain
from bytecap.guards.kinds import KINDS
from bytecap.guards.printing import MISSING, print_source, to_python
from bytecap.torch_capabilities import TORCH
from stagewire import capture
from stagewire.capture import Guard, Source, Symbol
from stagewire.expr import Dim, Expr, steps_of
from stagewire.types import TensorType

Scope = FrameView | Mapping[str, object]
Fetch = tuple[int, str, tuple[object, object, int]]
"""Parent, kind, and (name, object, index) of a node: what its kind takes of these."""
Check = tuple[str, tuple[object, int, tuple[int, ...]], int]
"""Kind, (object, number, words): what its kind takes of these, and the guard that it is made of."""


def compile_guards(
    guards: Iterable[Guard],
    scope: Scope,
    *,
    objects: Mapping[str, object] | None = None,
    symbols: Iterable[Symbol] = (),
    inputs: Iterable[Source] = (),
    numbers: dict[str, int] | None = None,
    verify: bool = True,
) -> GuardProgram:
    """The program that says whether `guards` hold for a frame.

    `scope` is the frame that was captured (or a dict of locals); `objects` gives the objects that
    guards and `HandleSource` name, where the frame does not. `symbols` adds the sources and ranges
    of size symbols. The values at `inputs` are handed to the replacement code in a tuple, in this
    order, when the guards hold (see `hook.INPUTS`). `numbers` is given the number that each symbol has in
    the program, for `with_relations`. With `verify`, guards that are false for `scope` itself raise
    GuardDoesNotHold. `program.guards` holds the guards, in the order of failure indices.

    >>> from stagewire.capture import Equals, Local
    >>> program = compile_guards([Equals(Local("n"), 3)], {"n": 3})
    >>> program.check({"n": 3}), program.check({"n": 4}), program.check({"n": True})
    (True, False, False)
    """
    builder = _Builder(scope, dict(objects or {}), {} if numbers is None else numbers)
    builder.add(guards)
    for symbol in symbols:
        builder.add_symbol(symbol)
    program = builder.build(tuple(inputs))
    if verify and not program.check(scope):
        raise GuardDoesNotHold(str(explain(program, scope)))
    return program


def with_relations(
    program: GuardProgram, relations: Sequence[capture.Relation], numbers: Mapping[str, int]
) -> GuardProgram:
    """The program that checks `relations` too; `numbers` are those of its symbols."""
    nodes, inputs = program.spec
    first = len(program.guards)
    checks = [_relation(relation_program(each, numbers), number) for number, each in enumerate(relations, first)]
    guards = (*program.guards, *relations)
    return GuardProgram((*nodes, (*_CONDITIONS, tuple(checks), 0)), len(numbers), guards, inputs)


Op = tuple[str, int]


def postfix(dim: Dim, symbols: Mapping[str, int]) -> tuple[Op, ...]:
    """`dim` as postfix operations; a symbol becomes its index.

    >>> from stagewire.expr import parse_expr
    >>> postfix(parse_expr("2*s0"), {"s0": 0})
    (('const', 2), ('symbol', 0), ('*', 0))
    """
    found: list[Op] = []
    for kind, operand in steps_of(dim):
        if isinstance(operand, int):
            found.append(("const", operand))
        elif not operand:
            found.append((kind.lower(), 0))
        elif operand in symbols:
            found.append((kind, symbols[operand]))
        else:
            raise GuardError(f"the symbol {operand!r} of {str(dim)!r} has no source")
    return tuple(found)


def relation_program(relation: capture.Relation, symbols: Mapping[str, int]) -> tuple[Op, ...]:
    """The whole condition: not zero when it holds."""
    left, right = postfix(relation.left, symbols), postfix(relation.right, symbols)
    return (*left, *right, (relation.operator, 0))


def _relation(program: tuple[Op, ...], guard: int) -> Check:
    words = tuple([word for kind, operand in program for word in (OPERATIONS[kind], operand)])
    return "relation", (None, 0, words), guard


class _Builder:
    """Collects nodes and guards first; `build` reads the live values and attaches the checks.

    numbers: those of the symbols, as far as they are known.
    """

    def __init__(self, scope: Scope, objects: dict[str, object], numbers: dict[str, int]) -> None:
        self.scope = scope
        self.objects = objects
        self.guards: list[Guard] = []
        self.places: list[int] = []  # for each guard the last node that it reads; -1: none
        self.nodes: list[tuple[int, str, Any, int]] = []  # parent, fetch, argument, the first guard that reads it
        self.index: dict[Source | None, int] = {}
        self.symbols = numbers
        self.symbol_sources: list[tuple[Symbol, int]] = []
        self.hidden: list[tuple[int, Dim, int]] = []
        self.hidden_count = 0
        self.live: tuple[object, ...] = ()  # what the nodes hold in the scope
        self.number = 0  # of the guard whose check is made

    # ---- sources ----------------------------------------------------------------------------

    def add(self, guards: Iterable[Guard]) -> None:
        for guard in guards:
            row = KINDS.get(type(guard))
            if row is None:
                raise GuardError(f"a guard of unknown kind: {guard!r}")
            self.guards.append(guard)
            self.places.append(max(map(self.node, row.sources(guard)), default=-1))

    def node(self, source: Source | None) -> int:
        """The node of a source (None: of the frame itself), made with its parents when new."""
        known = self.index.get(source)
        if known is not None:
            return known
        make = _FETCHES.get(type(source))
        if make is None:
            raise GuardError(f"a source of unknown kind: {source!r}")
        self.nodes.append((*make(self, source), len(self.guards) - 1))
        self.index[source] = made = len(self.nodes) - 1
        return made

    def cell(self, source: capture.Cell) -> Fetch:
        return -1 if source.function is None else self.node(source.function), "cell", (source.name, None, 0)

    def reading(self, source: capture.Reading) -> Fetch:
        call = (tuple(to_python(argument) for argument in source.arguments), self.objects[source.function], 0)
        return -1 if source.base is None else self.node(source.base), "call", call

    def handle(self, source: capture.HandleSource) -> Fetch:
        if source.name not in self.objects:
            raise GuardError(f"nobody gave the object of the handle {source.name!r}")
        return -1, "object", (None, self.objects[source.name], 0)

    def slot(self, name: str) -> int:
        if not isinstance(self.scope, FrameView):
            return -1
        arguments = argument_names(self.scope.code)
        return arguments.index(name) if name in arguments else -1

    # ---- symbols ----------------------------------------------------------------------------

    def add_symbol(self, symbol: Symbol) -> None:
        """A symbol's own source, and its range as relations."""
        source = symbol.source
        # Sizes and strides of tensors get their symbols from the guard on the tensor.
        is_of_tensor = isinstance(source, capture.Reading) and source.function in _SIZES
        if source is not None and not is_of_tensor:
            self.add([capture.Relation(Expr(symbol.name), "==", Expr(symbol.name))])
            self.symbol_sources.append((symbol, self.node(source)))
        if symbol.lower is not None:
            self.add([capture.Relation(Expr(symbol.name), ">=", symbol.lower)])
        if symbol.upper is not None:
            self.add([capture.Relation(Expr(symbol.name), "<=", symbol.upper)])

    def symbol_index(self, name: str) -> int:
        return self.symbols.setdefault(name, len(self.symbols))

    def dims(self, dims: tuple[Dim, ...]) -> tuple[int, ...]:
        """Sizes as the C evaluator wants them: -1-k binds symbol k. A compound expression binds a
        hidden symbol that a relation then compares with the expression."""
        if all(type(dim) is int for dim in dims):
            return dims  # type: ignore[return-value]
        found = []
        for dim in dims:
            if isinstance(dim, int):
                found.append(dim)
            elif dim.text.isidentifier():
                found.append(-1 - self.symbol_index(dim.text))
            else:
                hidden = self.symbol_index(f"{self.hidden_count} {dim.text}")
                self.hidden_count += 1
                self.hidden.append((hidden, dim, self.number))
                found.append(-1 - hidden)
        return tuple(found)

    # ---- checks -----------------------------------------------------------------------------

    def build(self, inputs: tuple[Source, ...]) -> GuardProgram:
        input_nodes = tuple(self.node(source) for source in inputs)
        bare = tuple([(parent, fetch, argument, (), guard) for parent, fetch, argument, guard in self.nodes])
        self.live = GuardProgram(bare).values(self.scope, MISSING)
        checks: list[list[Check]] = [[] for _ in self.nodes]
        for number, (guard, place) in enumerate(zip(self.guards, self.places, strict=True)):
            check, self.number = KINDS[type(guard)].check, number
            if check is not None:
                name, *given = check(self, guard)
                checks[place].append((name, (*given, *_NOTHING_MORE[len(given) :]), number))
        for symbol, node in self.symbol_sources:
            checks[node].append(("symbol", (None, self.symbol_index(symbol.name), ()), self.nodes[node][3]))
        hidden = [
            ((*postfix(dim, self.symbols), ("symbol", own), ("==", 0)), number) for own, dim, number in self.hidden
        ]
        relations = [
            (relation_program(guard, self.symbols), number)
            for number, guard in enumerate(self.guards)
            if isinstance(guard, capture.Relation)
        ]
        conditions = tuple([_relation(*each) for each in (*hidden, *relations)])
        nodes = [
            (parent, fetch, argument, tuple(made), guard)
            for (parent, fetch, argument, guard), made in zip(self.nodes, checks, strict=True)
        ]
        nodes += [(*_CONDITIONS, conditions, 0)] if conditions else []
        return GuardProgram(tuple(nodes), len(self.symbols), tuple(self.guards), input_nodes)

    def apart(self, guard: capture.SameObject | capture.Distinct) -> tuple[int, ...]:
        """The nodes of what a guard compares, each another one."""
        compared = KINDS[type(guard)].sources(guard)
        nodes = tuple([self.index[source] for source in compared])
        if len(set(nodes)) < len(nodes):
            repeated = next(source for source in compared if compared.count(source) > 1)
            raise GuardError(f"{print_source(repeated)} is compared with itself")
        return nodes

    def named_object(self, guard: capture.IdentityIs) -> object:
        found = self.objects.get(guard.name, self.live[self.index[guard.source]])
        if found is MISSING:
            raise GuardError(_no_value(guard))
        return found

    def named_type(self, guard: capture.TypeIs | capture.TensorIs, name: str) -> type:
        named = self.objects.get(name)
        if isinstance(named, type):
            return named
        live = self.live[self.index[guard.source]]
        if live is MISSING:
            raise GuardError(_no_value(guard))
        actual = type(live)
        if actual.__qualname__.rpartition(".")[2] != name.rpartition(".")[2]:
            raise GuardDoesNotHold(f"the type of {print_source(guard.source)} is {actual.__qualname__}, not {name}")
        return actual

    def tensor(self, guard: capture.TensorIs) -> tuple[object, int, tuple[int, ...]]:
        """The class of a tensor, and the words of the C TensorSpec."""
        live = self.live[self.index[guard.source]]
        if not isinstance(live, torch.Tensor):
            raise GuardError(f"{print_source(guard.source)} is not a tensor in the captured frame")
        expected: TensorType = guard.type
        if len(expected.shape) > _MOST_DIMENSIONS:
            raise GuardError(f"{print_source(guard.source)} has {len(expected.shape)} dimensions")
        device = torch.device(expected.device)
        with TORCH.no_subclass_function():
            if live.device.type == device.type and device.index is None:
                device = live.device
        words = (
            native.DTYPE_CODES[expected.dtype],
            native.dispatch_keys(live),
            *native.device_code(device),
            int(expected.requires_grad),
            -1 if guard.is_leaf is None else int(guard.is_leaf),
            len(expected.shape),
            *self.dims(expected.shape),
            *self.dims(expected.stride),
        )
        return self.named_type(guard, guard.type_name), 0, words


_SIZES = ("torch.Tensor.size", "torch.Tensor.stride")
_MOST_DIMENSIONS = 64
"""TENSOR_MAX_RANK of guards.h, and what TensorIterator takes."""

_NOTHING = (None, None, 0)
_NOTHING_MORE: tuple[Any, ...] = (None, 0, ())
_CONDITIONS = (-1, "frame", _NOTHING)
"""The node that checks conditions on symbols: the last one, when all of them are known."""


def _index(key: object) -> int:
    """Which item of a sequence a key is; one that no sequence has for a key that is no index."""
    return key if isinstance(key, int) and abs(key) < sys.maxsize else sys.maxsize


_FETCHES: dict[type[Source] | type[None], Callable[[_Builder, Any], Fetch]] = {
    type(None): lambda builder, source: (-1, "frame", _NOTHING),
    capture.Local: lambda builder, source: (-1, "local", (source.name, None, builder.slot(source.name))),
    capture.Global: lambda builder, source: (-1, "global", (source.name, _module_globals(source.module), 0)),
    capture.Builtin: lambda builder, source: (-1, "builtin", (source.name, None, 0)),
    capture.Cell: _Builder.cell,
    capture.Attribute: lambda builder, source: (
        builder.node(source.base), "attribute", (sys.intern(source.name), None, 0)
    ),
    capture.Item: lambda builder, source: (builder.node(source.base), "item", (source.key, None, _index(source.key))),
    capture.DictKey: lambda builder, source: (builder.node(source.base), "dict_key", (None, None, source.index)),
    capture.DictValue: lambda builder, source: (builder.node(source.base), "dict_value", (None, None, source.index)),
    capture.TypeOf: lambda builder, source: (builder.node(source.base), "type_of", _NOTHING),
    capture.Reading: _Builder.reading,
    capture.HandleSource: _Builder.handle,
}  # fmt: skip


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
