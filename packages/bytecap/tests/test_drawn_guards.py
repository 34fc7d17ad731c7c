"""Guards of drawn values: the C evaluator, the printed condition and the sentence say what was asked for.

Oracle: Python's own comparison of what two scopes hold, stated beside each request. A second scope holds the same
objects, others that differ in one thing, others altogether, or none.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from absint.meta import from_tensor, to_wire
from absint.wire import to_arg
from bytecap import _evalframe
from bytecap.guards import GuardError, compile_guards, explain, native, print_guard
from bytecap.guards.guard_set import GuardSet, Names, describe_object
from bytecap.testing.changes import setting
from stagewire.capture import Item, Local, Relation, Source, Symbol, TensorIs
from stagewire.expr import parse_expr
from stagewire.graph import SourceLine

NAMES = ("a", "b", "c", "d")
MOST_DIMENSIONS = 64
"""What TensorIterator takes."""
Scope = dict[str, Any]


class Plain:
    """An object of a class of the user's."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    class Inner(torch.Tensor):
        """A class inside of another, of tensors."""

    def __call__(self) -> None:
        """Objects that are called have no name."""


def function(x: Any, k: int = 2, *, z: int = 1) -> Any:
    return x


PLAIN = (
    None, True, False, 0, 1, 2, -1, 1.0, 2.5, -0.0, 0.0, float("inf"), float("nan"), 1j, "a", "b", "", (1, 2),
    (1.0, "a", None), (), slice(0, 2), ..., torch.device("cpu"), torch.channels_last,
)  # fmt: skip
OBJECTS = (Plain(1.0), Plain(2.0), function, functools.partial(function), Plain, Plain.Inner, Plain.__init__, int, len,
           torch, torch.float32)  # fmt: skip


def tensor(order: random.Random) -> torch.Tensor:
    few = (1,) * order.choice((MOST_DIMENSIONS, MOST_DIMENSIONS + 1))
    shape = order.choice(((), (0,), (1,), (2,), (2, 3), (3, 2), (2, 3, 1), (1, 2, 3, 4), (2, 2, 2, 2, 2), few))
    made = torch.zeros(
        shape, dtype=order.choice((torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool))
    )
    return altered(made, order) if order.random() < 0.7 else made


def altered(now: torch.Tensor, order: random.Random) -> torch.Tensor:
    """A tensor that differs in one thing."""
    plain = now.detach().clone()
    change = order.choice(("dtype", "rank", "size", "turned", "steps", "meta", "grad", "result", "parameter", "class"))
    if change == "dtype":
        return plain.to(order.choice((torch.float32, torch.float64, torch.bfloat16, torch.int64)))
    if change == "rank":
        return plain[None]
    if change == "size" and plain.dim():
        return torch.cat((plain, plain[:1]))
    if change == "turned" and plain.dim() > 1:
        return plain.transpose(0, 1)
    if change == "steps":
        return torch.stack((plain, plain), -1)[..., 0]
    if change == "meta":
        return plain.to("meta")
    if change == "class":
        return plain.as_subclass(Plain.Inner)
    if plain.dtype.is_floating_point and not now.requires_grad:
        if change == "parameter":
            return torch.nn.Parameter(plain)
        plain.requires_grad_()
        return plain * 1 if change == "result" else plain
    return plain


def value(order: random.Random) -> Any:
    kind = order.randrange(8)
    if kind < 3:
        return tensor(order)
    if kind == 3:
        return [order.choice(PLAIN) for _ in range(order.randrange(3))]
    if kind == 4:
        return {key: order.choice(PLAIN) for key in order.sample(("x", "y", "z"), order.randrange(4))}
    return order.choice(OBJECTS if kind == 5 else PLAIN)


def near(now: Any, order: random.Random) -> Any:
    """What differs from a value in one thing, or in nothing that is compared."""
    if isinstance(now, torch.Tensor):
        return altered(now, order)
    if isinstance(now, bool | int | float | complex):
        changes: tuple[Callable[[Any], Any], ...] = (bool, int, float, complex, lambda n: n + 1, lambda n: -n)
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return order.choice(changes)(now)
    if isinstance(now, tuple | list):
        inner = [near(one, order) if order.random() < 0.5 else one for one in now]
        return order.choice((type(now)(inner), tuple(now), list(now), type(now)([*now, 1])))
    if isinstance(now, dict):
        items = [(key, near(one, order) if order.random() < 0.5 else one) for key, one in now.items()]
        return order.choice((dict(items), dict(items[::-1]), dict(items[1:]), collections.OrderedDict(items)))
    if isinstance(now, Plain):
        return Plain(now.rate)
    return functools.partial(now) if callable(now) else str(now)


def other(now: Any, order: random.Random, every: Scope) -> Any:
    """What stands at a name in the second scope."""
    change = order.randrange(6)
    if change < 3:
        return now
    if change < 5:
        return near(now, order)
    return order.choice([*every.values(), value(order)])


def is_same(one: Any, two: Any) -> bool:
    """Whether two literals are of one type and value; 0.0 is not -0.0, and nan is itself."""
    if type(one) is not type(two):
        return False
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(is_same, one, two))
    return repr(one) == repr(two)


def facts(now: torch.Tensor) -> tuple[Any, ...]:
    shape, stride = tuple(now.shape), now.stride()
    return type(now), now.dtype, shape, stride, now.device, now.requires_grad, now.is_leaf


def modes() -> tuple[Any, ...]:
    autocast = [torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) for device in ("cpu", "cuda")]
    deterministic = torch.are_deterministic_algorithms_enabled()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        deterministic,
        *autocast,
    )


class Asked(NamedTuple):
    """What a guard has to say of a scope, and the line that asks."""

    holds: Callable[[Scope], bool]
    line: SourceLine


class Recording(GuardSet):
    """Guards on what a scope holds, with what was asked for."""

    def __init__(self, order: random.Random) -> None:
        super().__init__(Names())
        self.order = order
        self.asked: list[Asked] = []

    def here(self) -> SourceLine:
        return SourceLine("here.py", len(self.asked))

    def ask(self, holds: Callable[[Scope], bool], *, takes_line: bool = True) -> SourceLine | None:
        """Note what the next guard has to say. The line to give it, if it takes one; None: it is left to `here`."""
        self.asked.append(Asked(holds, self.here()))
        line = SourceLine("given.py", len(self.asked)) if takes_line and self.order.random() < 0.5 else None
        self.asked[-1] = Asked(holds, line or self.here())
        return line

    def value(self, name: str, now: Any) -> None:
        """Some guards on what stands at a name."""
        source, kind = Local(name), self.order.randrange(3)
        is_type = lambda scope: type(scope[name]) is type(now)  # noqa: E731
        if isinstance(now, torch.Tensor):
            was = facts(now)
            of = to_wire(from_tensor(now.detach()), requires_grad=now.requires_grad)
            self.tensor(source, of, now, self.ask(lambda scope: facts(scope[name]) == was))
        elif isinstance(now, list | dict):
            was = tuple(now)
            self.type_is(source, type(now), self.ask(is_type))
            if kind:
                self.length(source, len(was), self.ask(lambda scope: len(scope[name]) == len(was)))
            if isinstance(now, dict) and kind != 1:
                self.keys(source, was, self.ask(lambda scope: tuple(scope[name]) == was))
                for key in ("x", "z"):
                    self.ask(lambda scope, key=key: (key in scope[name]) == (key in was), takes_line=False)
                    self.has_key(source, key, key in was)
            for key, inner in enumerate(now) if isinstance(now, list) else now.items():
                self.equal(Item(source, key), inner, lambda scope, key=key: scope[name][key])
        elif now in OBJECTS and kind:
            self.identity(source, now, self.ask(lambda scope: scope[name] is now))
        elif now in OBJECTS:
            self.type_is(source, type(now), self.ask(is_type))
        else:
            self.class_unless_value(source, type(now), self.ask(is_type) or self.asked[-1].line)
            if kind:
                self.equal(source, now, lambda scope: scope[name])
                self.class_unless_value(source, type(now), None)

    def equal(self, source: Source, now: Any, of: Callable[[Scope], Any]) -> None:
        self.equals(source, to_arg(now), self.ask(lambda scope: is_same(of(scope), now)))

    def objects(self, scope: Scope) -> None:
        """Which names stand for one object, or for others than the rest."""
        for first, second in itertools.pairwise(NAMES):
            if self.order.random() < 0.4:
                same = scope[first] is scope[second]
                line = self.ask(
                    lambda after, pair=(first, second), same=same: (after[pair[0]] is after[pair[1]]) is same
                )
                self.same(Local(first), Local(second), same, line)
        chosen = self.order.sample(NAMES, self.order.randrange(1, 4))
        others = [name for name in NAMES if not any(scope[name] is scope[one] for one in chosen)]
        others = others[: self.order.randrange(4)]
        if len({id(scope[name]) for name in chosen}) == len(chosen):

            def apart(after: Scope) -> bool:
                own, rest = {id(after[name]) for name in chosen}, {id(after[name]) for name in others}
                return len(own) == len(chosen) and not own & rest

            if len(chosen) + len(others) > 1:
                self.ask(apart, takes_line=False)
            self.distinct([Local(name) for name in chosen], [Local(name) for name in others])

    def state(self) -> None:
        was = modes()
        self.ask(lambda _: modes() == was, takes_line=False)
        self.add(native.global_state())


def holds(condition: Callable[[Scope], bool], scope: Scope) -> bool:
    try:
        return bool(condition(scope))
    except (NameError, KeyError, TypeError, IndexError, AttributeError, RuntimeError):
        return False  # a name is missing, or stands for something of another kind


def evaluated(condition: str, objects: dict[str, Any]) -> Callable[[Scope], bool]:
    """A printed condition. Classes and objects that have names of their own are put there."""
    for number, name in enumerate(sorted(objects, key=len, reverse=True)):
        condition = re.sub(rf"(?<= is ){re.escape(name)}(?![\w.#])", f"_named{number}", condition)
    named = {f"_named{n}": objects[name] for n, name in enumerate(sorted(objects, key=len, reverse=True))}
    known = {"torch": torch, **vars(builtins), **named, "inf": float("inf")}
    return lambda scope: eval(condition, {**known, **scope})


@contextlib.contextmanager
def state(order: random.Random) -> Iterator[None]:
    """Another mode of torch, one time in three."""
    deterministic = torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    kinds: tuple[Callable[[], Any], ...] = (
        torch.no_grad, torch.inference_mode,
        lambda: torch.autocast("cpu", order.choice((torch.bfloat16, torch.float16))),
        lambda: setting(*deterministic, True),
        lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    )  # fmt: skip
    with order.choice(kinds)() if order.random() < 0.3 else contextlib.nullcontext():
        yield


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**64 - 1))
def test_the_evaluator_the_condition_and_the_sentence_say_what_was_asked_for(seed: int) -> None:
    order = random.Random(seed)
    before = {name: value(order) for name in NAMES}
    before["d"] = order.choice((before["a"], before["d"]))
    guards = Recording(order)
    objects = guards.names.objects
    with state(order):
        for name, now in before.items():
            guards.value(name, now)
        guards.objects(before)
        if order.random() < 0.3:
            guards.state()
        if any(isinstance(now, torch.Tensor) and now.dim() > MOST_DIMENSIONS for now in before.values()):
            with pytest.raises(GuardError, match=r"has 6\d dimensions"):
                compile_guards(guards.all(), before, objects=objects)
            return
        program = compile_guards(guards.all(), before, objects=objects)
        assert explain(program, before) is None
    conditions = [evaluated(print_guard(guard), objects) for guard in guards.all()]
    for _ in range(4):
        after = {name: other(now, order, before) for name, now in before.items() if order.random() < 0.95}
        with state(order):
            failed = [one.line for one in guards.asked if not holds(one.holds, after)]
            assert program.check(after) == (not failed), (failed, after)
            assert all(holds(condition, after) for condition in conditions) == (not failed)
            check_sentence(explain(program, after), failed)
            assert compiles(guards, after) == (not failed), (failed, after)


def compiles(guards: Recording, scope: Scope) -> bool:
    """Whether guards are compiled for a scope: those that do not hold for it are refused."""
    try:
        compile_guards(guards.all(), scope, objects=guards.names.objects)
    except GuardError:
        return False
    return True


def check_sentence(said: str | None, failed: list[SourceLine]) -> None:
    """It names two values that differ, and the line that asked."""
    assert (said is not None) == bool(failed)
    if said is None:
        return
    found = re.fullmatch(r"(.+?) (?:was|were) (.+) and (?:is|are) (.+?)(?: \(read at (\w+\.py):(\d+)\))?", said)
    assert found is not None, said
    subject, was, now, file, line = found.groups()
    assert any(name in re.findall(r"\w+", subject) for name in NAMES) or subject.startswith(
        ("grad mode", "inference mode", "autocast", "the default", "determ")
    ), said
    assert was != now, said
    assert file is None or SourceLine(file, int(line)) in failed, (said, failed)


def make_product(left: Any, right: Any) -> Any:
    """A size, or an expression of sizes."""
    texts = [str(getattr(one, "text", one)) for one in (left, right)]
    return left * right if type(left) is type(right) is int else parse_expr(f"({texts[0]})*({texts[1]})")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64 - 1))
def test_symbolic_sizes_bind_and_are_compared(seed: int) -> None:
    """Sizes that are symbols, or expressions of them, of two tensors, with a relation and a range."""
    order = random.Random(seed)
    texts = [[order.choice(("2", "s", "t", "2*s", "s + 1")) for _ in range(order.randrange(1, 4))] for _ in range(2)]

    def made(sizes: dict[str, int]) -> dict[str, Any]:
        shapes = [[eval(text, dict(sizes)) for text in row] for row in texts]
        return {name: torch.zeros(shape) for name, shape in zip(("a", "b"), shapes, strict=True)}

    first = {"s": order.randrange(2, 6), "t": order.randrange(2, 6)}
    scope = made(first)
    dims = [tuple(int(text) if text.isdecimal() else parse_expr(text) for text in row) for row in texts]
    bound = [name for name in ("s", "t") if any(name in row for row in texts)]
    if any("s" in text and "s" not in bound for row in texts for text in row):
        return  # nothing says what s is
    guards: list[Any] = []
    for name, sizes in zip(("a", "b"), dims, strict=True):
        stride: list[Any] = [1]
        for size in reversed(sizes[1:]):
            stride.insert(0, make_product(stride[0], size))
        shown = replace(to_wire(from_tensor(scope[name])), shape=sizes, stride=tuple(stride))
        guards.append(TensorIs(Local(name), shown, "torch.Tensor"))
    lower, upper = order.choice((None, 2, 4)), order.choice((None, 4, 5))
    relation = order.choice(("<=", "==", "!=", "<"))
    related = bound == ["s", "t"]
    guards += [Relation(parse_expr("s"), relation, parse_expr("t"))] if related else []
    symbols = [Symbol(name, None, first[name], lower, upper) for name in bound]

    def expected(found: dict[str, int]) -> bool:
        fits = not related or eval(f"s {relation} t", dict(found))
        in_range = all((lower or 0) <= found[name] <= (upper or 99) for name in bound)
        return fits and in_range

    try:
        program = compile_guards(guards, scope, symbols=symbols)
    except GuardError:
        assert not expected(first)
        return
    for _ in range(6):
        found = {"s": order.randrange(2, 7), "t": order.randrange(2, 7)}
        after = made(found)
        assert program.check(after) == expected(found), (texts, first, found)
        name = order.choice(("a", "b"))
        after[name] = torch.zeros([size + 1 for size in after[name].shape])
        if any(text.isdecimal() for text in texts["ab".index(name)]):
            assert not program.check(after)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**64 - 1))
def test_the_modes_of_torch_are_read_alike_in_c_and_in_python(seed: int) -> None:
    """However often the native reading is set up, it reads what the functions of torch say."""
    order = random.Random(seed)
    with state(order), state(order):
        assert native.configure() == native.READING
        assert tuple(_evalframe.read_state()) == tuple(native.read_state())
        codes = {dtype: native.DTYPE_CODES[name] for dtype, name in native.NAMES_BY_DTYPE.items()} | {False: -1}
        assert native.read_state()[-2:] == tuple(codes[dtype] for dtype in modes()[4:])


@settings(max_examples=30)
@given(st.lists(st.sampled_from((*OBJECTS, "again")), max_size=12))
def test_names_are_unique_and_stay(chosen: list[Any]) -> None:
    """By module and qualified name, the type for other objects; a second one of a name has a number."""
    chosen = [copied(one) for one in chosen]
    names, seen = Names(), collections.Counter[str]()
    for one in {id(one): one for one in chosen}.values():
        kind = one if isinstance(one, type) or hasattr(one, "__qualname__") else type(one)
        stem = torch.__name__ if one is torch else f"{kind.__module__}.{kind.__qualname__}"
        stem += "" if kind is one or one is torch else " object"
        seen[stem] += 1
        assert describe_object(one) == stem
        assert names.of(one) == (stem if seen[stem] == 1 else f"{stem}#{seen[stem]}")
    assert all(names.objects[names.of(one)] is one for one in chosen)


def copied(one: Any) -> Any:
    """A function of the same name as the others of this kind; what else is drawn is itself."""
    return (lambda: None) if one == "again" else one
