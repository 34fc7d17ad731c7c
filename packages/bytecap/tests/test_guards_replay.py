"""A guard program that replays a recorded run answers as one that reads everything again."""

from __future__ import annotations

import collections
import gc
import random
import sys
import timeit
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bytecap import _evalframe
from bytecap.guards import GuardProgram, compile_guards, native
from stagewire.capture import (
    Attribute,
    DictKey,
    DictValue,
    Distinct,
    Equals,
    GlobalState,
    Guard,
    HandleSource,
    HasAttribute,
    HasKey,
    IdentityIs,
    Item,
    KeysAre,
    LengthIs,
    Local,
    SameObject,
    Source,
    TensorIs,
    TypeIs,
    TypeOf,
)
from stagewire.types import TensorType

SELF = Local("self")

pytestmark = pytest.mark.skipif(
    _evalframe.tensor_layout()["layout"] != "offsets", reason="runs are recorded only where tensors are read raw"
)


def again(program: GuardProgram) -> GuardProgram:
    """The same guards without a recording."""
    nodes, inputs = program.spec
    return GuardProgram(nodes, 0, program.guards, inputs)


def is_replaying(program: GuardProgram, scope: dict[str, Any]) -> bool:
    """Whether the recording answers by now."""
    for _ in range(12):
        assert program.check(scope)
    before = program.replays
    assert program.check(scope)
    return program.replays == before + 1


def tensor_guard(source: Source, value: torch.Tensor) -> TensorIs:
    kind = TensorType(
        native.NAMES_BY_DTYPE[value.dtype], tuple(value.shape), tuple(value.stride()), 0, "cpu", value.requires_grad
    )
    return TensorIs(source, kind, f"{type(value).__module__}.{type(value).__qualname__}")


class Part(nn.Module):
    kind = "part"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))
        self.register_buffer("mean", torch.zeros(3))
        self.size = 3

    def method(self) -> int:
        return 1


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Part(), Part()])
        self.numbers = [1, 2.5, "three"]
        self.pair = (4, (5, "six"))
        self.table = {"a": 1, "b": [7]}
        self.ordered = collections.OrderedDict(x=1, y=2)
        self.box = types.SimpleNamespace(value=8, inner=types.SimpleNamespace(deep=9))
        self.call = Part.method
        self.shared = self.box


def guards_of(whole: Whole) -> list[Guard]:
    """Guards of every kind, in the way in which the evaluator reads modules, and in other ways."""
    guards: list[Guard] = [TypeIs(SELF, "Whole"), GlobalState(grad_enabled=True)]
    modules = Attribute(SELF, "_modules")
    guards += [HasKey(Attribute(SELF, "__dict__"), "parts", False), HasKey(modules, "other", False)]
    parts = Item(modules, "parts")
    guards.append(KeysAre(Attribute(parts, "_modules"), ("0", "1")))
    for key in ("0", "1"):
        part = Item(Attribute(parts, "_modules"), key)
        live = whole.parts[int(key)]
        guards += [
            TypeIs(part, "Part"),
            LengthIs(Attribute(part, "_forward_hooks"), 0),
            HasKey(Attribute(part, "__dict__"), "forward", False),
            tensor_guard(Item(Attribute(part, "_parameters"), "weight"), live.weight),
            tensor_guard(Attribute(part, "mean"), live.mean),
            Equals(Attribute(part, "size"), 3),
            Equals(Attribute(part, "kind"), "part"),
            HasAttribute(part, "bias", False),
            IdentityIs(Attribute(HandleSource("Part"), "method"), "method"),
        ]
    numbers = Attribute(SELF, "numbers")
    guards += [LengthIs(numbers, 3), Equals(Item(numbers, 0), 1), Equals(Item(numbers, 1), 2.5)]
    pair = Attribute(SELF, "pair")
    guards += [TypeIs(pair, "tuple"), LengthIs(pair, 2), Equals(Item(Item(pair, 1), 1), "six")]
    table = Attribute(SELF, "table")
    guards += [KeysAre(table, ("a", "b")), Equals(Item(table, "a"), 1), Equals(Item(Item(table, "b"), 0), 7)]
    guards += [Equals(DictKey(table, 1), "b"), Equals(DictValue(table, 0), 1)]
    ordered = Attribute(SELF, "ordered")
    guards += [KeysAre(ordered, ("x", "y")), Equals(DictKey(ordered, 0), "x"), Equals(Item(ordered, "y"), 2)]
    box = Attribute(SELF, "box")
    guards += [Equals(Attribute(box, "value"), 8), Equals(Attribute(Attribute(box, "inner"), "deep"), 9)]
    guards += [SameObject(box, Attribute(SELF, "shared"), True), SameObject(box, numbers, False)]
    first, second = (Item(Attribute(parts, "_modules"), key) for key in "01")
    guards.append(Distinct((box, first), (second, table, Attribute(SELF, "parts"))))  # all strong
    guards.append(Distinct((numbers, Item(Item(table, "b"), 0)), (box, Local("x"))))  # some fetched
    guards.append(Distinct((TypeOf(box), DictValue(ordered, 0)), (numbers, Local("n"))))  # some late
    guards += [IdentityIs(TypeOf(box), "box"), IdentityIs(Attribute(SELF, "call"), "method")]
    guards += [Equals(Local("n"), 3), tensor_guard(Local("x"), torch.zeros(2))]
    return guards


def program_of(whole: Whole) -> tuple[GuardProgram, dict[str, Any]]:
    scope = {"self": whole, "n": 3, "x": torch.zeros(2)}
    objects = {"Part": Part, "Whole": Whole, "method": Part.method, "box": types.SimpleNamespace}
    inputs = (Item(Attribute(Item(Attribute(Item(Attribute(SELF, "_modules"), "parts"), "_modules"), "0"), "_parameters"), "weight"), Local("x"))  # fmt: skip  # noqa: E501
    return compile_guards(guards_of(whole), scope, objects=objects, inputs=inputs), scope


def change_class(whole: Whole) -> None:
    whole.parts[1].__class__ = type("Part", (Part,), {})


def exchange_dict(module: nn.Module, **values: object) -> None:
    """The old dict stays alive, unchanged."""
    module.__dict__ = {**module.__dict__, **values, "old": module.__dict__}


CHANGES: dict[str, Callable[[Whole], Any]] = {
    "module replaced": lambda w: w.parts.__setitem__(0, Part()),
    "module removed": lambda w: w.parts._modules.popitem(),
    "module of another class": lambda w: w.parts.__setitem__(1, nn.ReLU()),
    "module list replaced": lambda w: setattr(w, "parts", nn.ModuleList([Part(), Part()])),
    "module list hidden": lambda w: w.__dict__.update(parts=1),
    "parameter replaced": lambda w: setattr(w.parts[0], "weight", nn.Parameter(torch.ones(2, 3))),
    "parameter of another shape": lambda w: setattr(w.parts[1], "weight", nn.Parameter(torch.ones(3, 2))),
    "parameter resized in place": lambda w: setattr(w.parts[1].weight, "data", torch.ones(4)),
    "parameter frozen": lambda w: w.parts[0].requires_grad_(False),
    "parameter None": lambda w: setattr(w.parts[0], "weight", None),
    "buffer replaced": lambda w: setattr(w.parts[0], "mean", torch.ones(3)),
    "buffer of another dtype": lambda w: setattr(w.parts[0], "mean", torch.ones(3, dtype=torch.float64)),
    "buffer hidden by an attribute": lambda w: w.parts[0].__dict__.update(mean=3),
    "hook": lambda w: w.parts[0].register_forward_hook(lambda *a: None),
    "hook dict replaced": lambda w: w.parts[0].__dict__.update(_forward_hooks={1: print}),
    "own forward": lambda w: w.parts[1].__dict__.update(forward=print),
    "number": lambda w: setattr(w.parts[0], "size", random.choice((3, 4, 3.0, True))),
    "class attribute hidden": lambda w: setattr(w.parts[0], "kind", "other"),
    "attribute that was missing": lambda w: setattr(w.parts[1], "bias", None),
    "class": change_class,
    "whole class": lambda w: setattr(w, "__class__", type("Whole", (Whole,), {})),
    "list item": lambda w: w.numbers.__setitem__(random.randrange(3), random.choice((1, 2.5, 7, True))),
    "list shorter": lambda w: w.numbers.pop(),
    "list longer": lambda w: w.numbers.append(0),
    "list replaced by an equal one": lambda w: setattr(w, "numbers", list(w.numbers)),
    "tuple replaced": lambda w: setattr(w, "pair", (4, (5, random.choice(("six", "seven"))))),
    "tuple to list": lambda w: setattr(w, "pair", [4, (5, "six")]),
    "table value": lambda w: w.table.update(a=random.choice((1, 2, True))),
    "table order": lambda w: w.table.update(a=w.table.pop("a", 1)),
    "table inner list": lambda w: w.table.update(b=[random.choice((7, 8))]),
    "table inner list in place": lambda w: w.table["b"].__setitem__(0, 8) if "b" in w.table else None,
    "table replaced": lambda w: setattr(w, "table", {"a": 1, "b": [7]}),
    "table cleared": lambda w: w.table.clear(),
    "ordered moved": lambda w: w.ordered.move_to_end(random.choice(list(w.ordered))) if w.ordered else None,
    "ordered value": lambda w: w.ordered.update(y=3),
    "box value": lambda w: setattr(w.box, "value", random.choice((8, 9))),
    "box deeper": lambda w: setattr(w.box, "inner", types.SimpleNamespace(deep=random.choice((9, 10)))),
    "box replaced": lambda w: setattr(w, "box", types.SimpleNamespace(value=8, inner=w.box.inner)),
    "box shared": lambda w: setattr(w, "shared", w.box),
    "box in numbers": lambda w: setattr(w, "numbers", w.box),
    "box in ordered": lambda w: w.ordered.update(x=w.numbers),
    "one part twice": lambda w: w.parts.__setitem__(1, w.parts[0]),
    "another function": lambda w: setattr(w, "call", print),
    "unread attribute": lambda w: setattr(w, "unread", object()),
    "unread attribute of a part": lambda w: setattr(w.parts[0], "unread", object()),
    "dict exchanged": lambda w: setattr(
        w, "__dict__", {**w.__dict__, "numbers": [random.choice((1, 2)), 2.5, "three"]}
    ),
    "dict of a part exchanged": lambda w: exchange_dict(w.parts[0], size=5),
    "dict replaced whole": lambda w: w.__dict__.update(dict(w.__dict__)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_by_the_recording(name: str) -> None:
    random.seed(name)
    for _ in range(4):
        whole = Whole()
        program, scope = program_of(whole)
        assert is_replaying(program, scope)
        CHANGES[name](whole)
        for _ in range(3):
            assert program.check(scope) == again(program).check(scope)


@pytest.mark.parametrize("seed", range(12))
def test_any_sequence_of_changes(seed: int) -> None:
    """Changes, some of them taken back by building the model again; the garbage in between reuses addresses."""
    choose = random.Random(seed)
    random.seed(seed)
    whole = Whole()
    program, scope = program_of(whole)
    verdicts = set()
    for _ in range(120):
        if choose.random() < 0.3:
            fresh = Whole()
            if choose.random() < 0.5:
                whole = scope["self"] = fresh
            else:
                whole.__class__ = Whole
                whole.__dict__.clear()
                whole.__dict__.update(fresh.__dict__)
            del fresh
        if choose.random() < 0.7:
            try:
                CHANGES[choose.choice(list(CHANGES))](whole)
            except (KeyError, IndexError, AttributeError, TypeError):
                continue  # an earlier change took away what this one needs
        if choose.random() < 0.2:
            gc.collect(0)
        for _ in range(choose.randrange(1, 4)):
            expected = again(program).check(scope)
            assert program.check(scope) == expected
            verdicts.add(expected)
            given = program.inputs(scope)
            assert (given is not None) == expected
            assert given is None or (given[0] is whole.parts[0].weight and given[1] is scope["x"])
    assert verdicts == {True, False}


def test_arguments_may_change_while_the_model_stays() -> None:
    whole = Whole()
    program, scope = program_of(whole)
    assert is_replaying(program, scope)
    before = program.replays
    for _ in range(20):
        scope["x"] = torch.zeros(2)
        assert program.check(scope)
    assert program.replays == before + 20
    scope["x"] = torch.zeros(3)
    assert not program.check(scope)
    scope["x"] = torch.zeros(2)
    scope["n"] = 4
    assert not program.check(scope)
    scope["n"] = 3
    with torch.no_grad():
        assert not program.check(scope)
    assert program.check(scope)
    assert program.replays > before + 20


def test_attributes_that_change_every_call_do_not_stop_the_recording() -> None:
    """A step counter makes its module's dict volatile; the rest is still not read again."""
    whole = Whole()
    program, scope = program_of(whole)
    for step in range(30):
        whole.counter = step
        whole.parts[0].counter = step
        whole.table["b"] = [7]
        assert program.check(scope)
    before = program.replays
    for step in range(30):
        whole.counter = step
        whole.parts[0].counter = step
        whole.table["b"] = [7]
        assert program.check(scope)
    assert program.replays == before + 30
    whole.parts[0].size = 4
    assert not program.check(scope)


@pytest.mark.parametrize(
    "guard",
    [
        KeysAre(Attribute(SELF, "ordered"), ("x", "y")),
        Equals(DictKey(Attribute(SELF, "ordered"), 0), "x"),
        Equals(DictValue(Attribute(SELF, "ordered"), 1), 2),
    ],
)
def test_the_order_of_an_ordered_dict_is_its_own(guard: Guard) -> None:
    scope = {"self": Whole()}
    program = compile_guards([guard], scope)
    assert is_replaying(program, scope)
    scope["self"].ordered.move_to_end("x")
    assert not program.check(scope)
    scope["self"].ordered.move_to_end("y")
    assert program.check(scope)


def test_class_changes_are_seen() -> None:
    whole = Whole()
    program, scope = program_of(whole)
    assert is_replaying(program, scope)
    Part.kind = "other"
    try:
        assert not program.check(scope)
    finally:
        Part.kind = "part"
    assert program.check(scope)
    method = Part.method
    Part.method = lambda self: 2
    try:
        assert not program.check(scope)
    finally:
        Part.method = method
    assert program.check(scope)


def kept(x: object) -> object:
    return x


class Meta(type):
    pass


class Ground:
    pass


class Made(Ground, metaclass=Meta):
    plain = 1
    static = staticmethod(kept)
    bound = classmethod(kept)


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (Made, "plain", 2),
        (Made, "static", staticmethod(print)),
        (Made, "static", kept),
        (Made, "bound", 3),
        (Made, "absent", None),
        (Ground, "absent", None),
        (Ground, "plain", 2),
        (Meta, "absent", None),
        (Meta, "plain", property(lambda cls: 1)),
        (Meta, "plain", 2),
        (Meta, "__getattribute__", lambda cls, name: 1),
        (Meta, "__getattr__", lambda cls, name: 1),
        (Ground, "unread", 1),
    ],
)
def test_class_lookups_are_recorded(cls: type, name: str, value: object) -> None:
    made = HandleSource("Made")
    guards: list[Guard] = [
        Equals(Attribute(made, "plain"), 1),
        IdentityIs(Attribute(made, "static"), "kept"),
        TypeIs(Attribute(made, "bound"), "builtins.method"),
        HasAttribute(made, "absent", False),
        HasAttribute(made, "plain", True),
        Equals(Attribute(TypeOf(Local("x")), "plain"), 1),
    ]
    scope = {"x": Made()}
    program = compile_guards(guards, scope, objects={"Made": Made, "kept": kept})
    assert is_replaying(program, scope)
    missing = object()
    before = cls.__dict__.get(name, missing)
    setattr(cls, name, value)
    try:
        for _ in range(3):
            assert program.check(scope) == again(program).check(scope)
    finally:
        if before is missing:
            delattr(cls, name)
        else:
            setattr(cls, name, before)
    assert is_replaying(program, scope)


def test_functions_are_compared_with_their_defaults() -> None:
    def function(a, b=1, *, c=2):
        return a, b, c

    program = compile_guards([IdentityIs(Local("f"), "f")], {"f": function}, objects={"f": function})
    assert is_replaying(program, {"f": function})
    for name, value in (("__defaults__", (2,)), ("__kwdefaults__", {"c": 3}), ("__defaults__", None)):
        before = getattr(function, name)
        setattr(function, name, value)
        assert not program.check({"f": function})
        setattr(function, name, before)
        assert program.check({"f": function})
    function.__kwdefaults__["c"] = 5
    assert not program.check({"f": function})
    function.__kwdefaults__["c"] = 2
    assert program.check({"f": function})
    code = function.__code__
    function.__code__ = code.replace(co_name="other")
    assert not program.check({"f": function})
    assert not program.check({"f": types.FunctionType(code, globals())})


def test_the_recording_keeps_nothing_alive() -> None:
    whole = Whole()
    program, scope = program_of(whole)
    assert is_replaying(program, scope)
    weight = whole.parts[0].weight

    gone = [weakref.ref(whole), weakref.ref(whole.parts[1]), weakref.ref(weight)]
    scope["self"] = None
    del whole, weight
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    assert not program.check(scope)
    fresh = Whole()
    scope["self"] = fresh
    assert program.check(scope)


def test_destructors_that_run_during_a_check() -> None:
    """A guard that makes objects may collect garbage, whose destructors may change what is being read."""

    class Meddler:
        def __del__(self) -> None:
            whole.numbers = [1, 2.5, "three"]
            whole.parts = nn.ModuleList([Part(), Part()])

    whole = Whole()
    program, scope = program_of(whole)
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 10**6, 10**6)  # the young ones only: quick
    try:
        for _ in range(300):
            meddler = Meddler()
            meddler.cycle = meddler
            del meddler
            assert program.check(scope)
            assert program.inputs(scope)[1] is scope["x"]
    finally:
        gc.set_threshold(*thresholds)


def test_inputs_come_in_order_and_are_new_references() -> None:
    a, b = torch.zeros(1), torch.zeros(2)
    program = compile_guards(
        [tensor_guard(Local("a"), a), tensor_guard(Local("b"), b)], {"a": a, "b": b},
        inputs=(Local("b"), Local("a"), Local("b")),
    )  # fmt: skip

    before = sys.getrefcount(a), sys.getrefcount(b)
    for _ in range(100):
        given = program.inputs({"a": a, "b": b})
        assert [id(value) for value in given] == [id(b), id(a), id(b)]
        assert program.inputs({"a": b, "b": b}) is None
    del given
    assert (sys.getrefcount(a), sys.getrefcount(b)) == before


class Plain:
    """Its attributes lie in the object itself, from CPython 3.11 on, until they are moved."""

    def __init__(self, count: int) -> None:
        for number in range(count):
            setattr(self, f"a{number}", number)

    def store(self, value: Any) -> None:
        self.a0 = value


def plain_guards(count: int) -> list[Guard]:
    return [Equals(Attribute(Local("x"), f"a{number}"), number) for number in range(count)]


def test_attributes_inside_of_an_object_are_seen_to_change() -> None:
    plain = Plain(3)
    names, own = list(vars(plain)), vars(plain)
    program, scope = compile_guards(plain_guards(3), {"x": plain}), {"x": plain}
    for call in range(600):  # so often that the store is specialised
        for _ in range(call % 5):
            assert program.check(scope)
        plain.store(1)
        assert not program.check(scope)
        plain.store(0)
        assert program.check(scope)
    assert vars(plain) is own
    assert list(own) == names
    for spoil in (lambda: own.pop("a1"), lambda: delattr(plain, "a2"), lambda: setattr(plain, "__dict__", {})):
        assert is_replaying(program, scope)
        spoil()
        assert not program.check(scope)
        vars(plain).update(a0=0, a1=1, a2=2)
    assert is_replaying(program, scope)
    scope["x"] = Plain(3)
    assert program.check(scope)
    scope["x"].a1 = 5
    assert not program.check(scope)


def test_attributes_that_stay_are_not_read_again() -> None:
    seconds = []
    for count in (1, 300):
        scope = {"x": Plain(count)}
        program = compile_guards(plain_guards(count), scope)
        assert is_replaying(program, scope)
        seconds.append(min(timeit.repeat(lambda program=program, scope=scope: program.check(scope), number=2000)))
    assert seconds[1] < 10 * seconds[0]


def test_dictionaries_of_classes() -> None:
    """Names that come and go show in a recording, and so does another class, also one in the place of one that died."""
    names = Attribute(Local("cls"), "__dict__")

    def make() -> type:
        return type("Own", (), {"x": 1})

    own = make()
    guards = [LengthIs(names, len(own.__dict__)), HasKey(names, "x", True), HasKey(names, "new", False)]
    guards += [KeysAre(names, tuple(own.__dict__)), Equals(Item(names, "x"), 1)]
    program = compile_guards(guards, {"cls": own})
    assert is_replaying(program, {"cls": own})
    own.new = 1  # type: ignore[attr-defined]
    assert not program.check({"cls": own})
    del own.new  # type: ignore[attr-defined]
    assert program.check({"cls": own})
    own.x = 2  # type: ignore[attr-defined]
    assert not program.check({"cls": own})
    del own.x  # type: ignore[attr-defined]
    assert not program.check({"cls": own})
    for _ in range(20):
        other = make()
        assert is_replaying(program, {"cls": other})
        other.new = 1  # type: ignore[attr-defined]
        assert not program.check({"cls": other})
        del other
        gc.collect()


def test_the_dictionary_of_a_class_without_one_of_its_own() -> None:
    """Classes of C have one too; what is no class has the dictionary of an instance."""
    names = Attribute(Local("cls"), "__dict__")
    program = compile_guards([HasKey(names, "append", True)], {"cls": list})
    assert program.check({"cls": list})
    assert not program.check({"cls": int})
    assert not program.check({"cls": types.SimpleNamespace()})
    assert program.check({"cls": types.SimpleNamespace(append=1)})
