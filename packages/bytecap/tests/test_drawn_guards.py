"""Guards of drawn values: the program of the C evaluator, the condition that is printed, and the sentence agree.

Oracle: Python, which evaluates the printed conditions. A second scope holds the same objects, equal ones, ones that
differ in one thing, or none.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import enum
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from absint.meta import from_tensor, to_wire
from absint.wire import to_arg
from bytecap import executor, optimize
from bytecap.guards import GuardError, compile_guards, explain, print_guard
from bytecap.guards.guard_set import GuardSet, Names, global_state
from bytecap.testing import differences
from stagewire.capture import Item, Local, Relation, Source, Symbol, TensorIs
from stagewire.expr import parse_expr

NAMES = ("a", "b", "c", "d")


class Plain:
    """An object of a class of the user's."""

    def __init__(self, rate: float) -> None:
        self.rate = rate


def function(x: Any, k: int = 2, *, z: int = 1) -> Any:
    return x


def plain(order: random.Random) -> Any:
    """Data that guards compare by value."""
    return order.choice((None, True, False, 0, 1, 2, -1, 1.0, 2.5, -0.0, 0.0, float("inf"), "a", "b", "", (1, 2)))


def tensor(order: random.Random) -> torch.Tensor:
    shape = order.choice(((), (0,), (1,), (2,), (2, 3), (3, 2), (2, 3, 1), (1, 2, 3, 4), (2, 2, 2, 2, 2)))
    dtype = order.choice((torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool))
    made = torch.zeros(shape, dtype=dtype)
    change = order.choice(("", "grad", "result", "turned", "steps", "parameter", "meta"))
    if change == "turned" and made.dim() > 1:
        return made.transpose(0, 1)
    if change == "steps":
        return torch.zeros((*shape, 2), dtype=dtype)[..., 0]
    if change == "meta":
        return made.to("meta")
    if change and dtype.is_floating_point:
        made.requires_grad_()
        return torch.nn.Parameter(made.detach()) if change == "parameter" else made * 1 if change == "result" else made
    return made


def value(order: random.Random) -> Any:
    kind = order.randrange(8)
    if kind < 3:
        return tensor(order)
    if kind == 3:
        return [plain(order) for _ in range(order.randrange(3))]
    if kind == 4:
        return {key: plain(order) for key in order.sample(("x", "y", "z"), order.randrange(4))}
    if kind == 5:
        return order.choice((Plain(1.0), Plain(2.0), function, int, torch, torch.float32, len))
    return plain(order)


def other(now: Any, order: random.Random, every: dict[str, Any]) -> Any:
    """What stands at a name in the second scope."""
    change = order.randrange(6)
    if change < 3:
        return now
    if change == 3:
        is_inner = isinstance(now, torch.Tensor) and not now.is_leaf
        return now.clone() if is_inner else now if isinstance(now, type(torch)) else copy.copy(now)
    return order.choice(list(every.values())) if change == 4 else value(order)


def record(guards: GuardSet, scope: dict[str, Any], order: random.Random) -> None:
    """Some guards on what a scope holds."""
    for name, now in scope.items():
        source, kind = Local(name), order.randrange(3)
        if isinstance(now, torch.Tensor):
            shown = now.requires_grad and not now.is_leaf
            guards.tensor(source, to_wire(from_tensor(now.detach()), requires_grad=now.requires_grad), now, None)
            assert not shown or TensorIs in map(type, guards.all())
        elif isinstance(now, list | dict):
            guards.type_is(source, type(now))
            guards.length(source, len(now)) if kind else None
            if isinstance(now, dict) and kind != 1:
                guards.keys(source, tuple(now))
                guards.has_key(source, "x", "x" in now)
                guards.has_key(source, "z", "z" in now)
            for key, inner in enumerate(now) if isinstance(now, list) else now.items():
                guards.equals(Item(source, key), to_arg(inner), None)
        elif isinstance(now, Plain) or callable(now) or isinstance(now, type(torch)):
            guards.identity(source, now) if kind else guards.type_is(source, type(now))
        elif isinstance(now, torch.dtype):
            guards.identity(source, now)
        else:
            guards.class_unless_value(source, type(now), None)
            guards.equals(source, to_arg(now), None) if kind else None
            guards.class_unless_value(source, type(now), None)
    guards.add(global_state()) if order.random() < 0.3 else None
    for first, second in itertools.pairwise(NAMES):
        if order.random() < 0.4:
            guards.same(Local(first), Local(second), scope[first] is scope[second])
    chosen: list[Source] = [Local(name) for name in order.sample(NAMES, order.randrange(1, 4))]
    distinct = [scope[one.name] for one in chosen]  # type: ignore[attr-defined]
    others: list[Source] = [Local(name) for name in NAMES if not any(scope[name] is one for one in distinct)]
    others = others[: order.randrange(4)]
    if len({id(one) for one in distinct}) == len(distinct):
        guards.distinct(chosen, others)


def holds(condition: str, scope: dict[str, Any], objects: dict[str, Any]) -> bool:
    """Whether a printed condition holds. Classes and objects that have names of their own are put there."""
    for number, name in enumerate(sorted(objects, key=len, reverse=True)):
        condition = re.sub(rf"(?<= is ){re.escape(name)}(?![\w.#])", f"_named{number}", condition)
    named = {f"_named{n}": objects[name] for n, name in enumerate(sorted(objects, key=len, reverse=True))}
    try:
        return bool(eval(condition, {"torch": torch, **vars(builtins), **named, **scope, "inf": float("inf")}))
    except (NameError, TypeError, AttributeError, KeyError, IndexError, RuntimeError):
        return False


@contextlib.contextmanager
def state(order: random.Random) -> Iterator[None]:
    """Another mode of torch, one time in three."""
    modes = (torch.no_grad(), torch.autocast("cpu"), torch.autocast("cpu", torch.float16), torch.inference_mode())
    with order.choice(modes) if order.random() < 0.3 else contextlib.nullcontext():
        yield


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**64 - 1))
def test_the_evaluator_the_condition_and_the_sentence_agree(seed: int) -> None:
    order = random.Random(seed)
    before = {name: value(order) for name in NAMES}
    before["d"] = order.choice((before["a"], before["d"]))
    guards = GuardSet(Names())
    with state(order):
        record(guards, before, order)
        program = compile_guards(guards.all(), before, objects=guards.names.objects)
        assert explain(program, before) is None
    objects = guards.names.objects
    for _ in range(4):
        after = {name: other(now, order, before) for name, now in before.items() if order.random() < 0.95}
        with state(order):
            failed = [guard for guard in guards.all() if not holds(print_guard(guard), after, objects)]
            said = explain(program, after)
            assert program.check(after) == (not failed), (said, failed, after)
        if failed:
            assert said is not None
            check_sentence(said)
        else:
            assert said is None


def check_sentence(said: str) -> None:
    """It names two values that differ."""
    found = re.fullmatch(r"(.+?) (?:was|were) (.+) and (?:is|are) (.+)", said)
    assert found is not None, said
    subject, was, now = found.groups()
    assert any(name in re.findall(r"\w+", subject) for name in NAMES) or subject.startswith(
        ("grad mode", "inference mode", "autocast", "the default", "determ")
    ), said
    assert was != now, said


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
    lower, relation = order.choice((None, 2, 4)), order.choice(("<=", "==", "!=", "<"))
    related = bound == ["s", "t"]
    guards += [Relation(parse_expr("s"), relation, parse_expr("t"))] if related else []
    symbols = [Symbol(name, None, first[name], lower) for name in bound]

    def expected(found: dict[str, int]) -> bool:
        fits = not related or eval(f"s {relation} t", dict(found))
        return fits and all(lower is None or found[name] >= lower for name in bound)

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


READS = {
    "first": "{n} + 1", "keyword": "{n} * 2", "more[0]": "{n}", "named['z']": "{n}", "in_cell": "{n}", "GLOBAL": "{n}",
    "first.rate": "{n}", "Holder.rate": "{n}", "len(first.items)": "{n}", "keyword.items[-1]": "{n}",
    "helper(first)": "{n}", "isinstance(keyword, Holder)": "{n}", "hasattr(first, 'late')": "{n}",
    "'late' in keyword.table": "{n}", "first is keyword": "{n}", "keyword.table.get('late', 7)": "{n}",
    "torch.is_grad_enabled()": "{n}", "x.requires_grad": "{n}", "x.shape[0]": "{n}", "x.dtype is torch.float32": "{n}",
    "[*keyword.table][0] == 'early'": "{n}", "list_of[0].rate": "{n}", "type(first).__name__ == 'Holder'": "{n}",
    "callable(first)": "{n}", "max(first.items)": "{n}", "first.inner.rate": "{n}", "keyword_only": "{n}",
    "Colour.RED.value": "{n}", "kind is int": "{n}", "maths.pi": "{n}", "len(ITEMS)": "{n}",
    "first.layer(x).sum()": "{n}", "first.layer.training": "{n}",
}  # fmt: skip
"""What a program reads, and what it adds of that to its result."""

PROGRAM = """
import enum
import math as maths

import torch

GLOBAL, list_of, kind = 3, [], int
ITEMS = {{"a": 1}}

class Colour(enum.Enum):
    RED = 1

class Holder:
    rate = 2.0

    def __init__(self):
        self.items, self.table, self.inner = [1, 2], {{"early": 1}}, None
        self.layer = torch.nn.Identity()

def helper(holder, factor=2):
    return holder.rate * factor

def outer():
    in_cell = 5

    def program(x, first, keyword, *more, keyword_only=1, **named):
        total = 0.0
        {body}
        return x * 2 + total

    def put(value):
        nonlocal in_cell
        in_cell = value

    return program, put
"""


def changes(names: dict[str, Any], put: Any, first: Any, keyword: Any) -> dict[str, Any]:
    """What may change between two calls, by name."""
    return {
        "nothing": lambda: None,
        "cell": lambda: put(6),
        "class": lambda: names.update(kind=float),
        "items": lambda: names["ITEMS"].update(b=2),
        "enum": lambda: names.update(Colour=enum.Enum("Colour", {"RED": 4})),
        "global": lambda: names.update(GLOBAL=4),
        "attribute": lambda: setattr(first, "rate", 3.0),
        "class attribute": lambda: setattr(names["Holder"], "rate", 4.0),
        "length": lambda: first.items.append(9),
        "last item": lambda: keyword.items.__setitem__(-1, 8),
        "new attribute": lambda: setattr(first, "late", 1),
        "new key": lambda: keyword.table.update(late=2),
        "first key": lambda: (keyword.table.clear(), keyword.table.update(other=1)),
        "default": lambda: setattr(names["helper"], "__defaults__", (5,)),
        "code": lambda: setattr(names["helper"], "__code__", (lambda holder, factor: holder.rate - factor).__code__),
        "replaced function": lambda: names.update(helper=lambda holder: holder.rate),
        "inner": lambda: setattr(first, "inner", keyword),
        "object in a list": lambda: names["list_of"].__setitem__(0, keyword),
        "callable": lambda: setattr(names["Holder"], "__call__", lambda self: 1),
        "class of torch": lambda: setattr(torch.nn.Identity, "forward", lambda self, value: value * 5),
        "eval": lambda: first.layer.eval(),
        "hook": lambda: first.layer.register_forward_hook(lambda module, args, result: result * 3),
    }


IDENTITY = torch.nn.Identity.forward


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    yield
    torch.nn.Identity.forward = IDENTITY  # type: ignore[method-assign]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**64 - 1))
def test_what_a_program_reads_is_guarded_and_nothing_else_is(seed: int) -> None:
    """Oracle: the plain program. A call that reads nothing new is served by what there is."""
    torch.nn.Identity.forward = IDENTITY  # type: ignore[method-assign]
    order = random.Random(seed)
    reads = order.sample(sorted(READS), order.randrange(1, 6))
    body = "".join(f"total = total + ({READS[one].format(n=f'({one})')})\n        " for one in reads)
    names: dict[str, Any] = {"__name__": __name__}
    exec(PROGRAM.format(body=body), names)
    program, put = names["outer"]()
    first, keyword = names["Holder"](), names["Holder"]()
    first.inner = names["Holder"]()
    names["list_of"].append(first)
    if order.random() < 0.3:
        keyword = first
    captured: list[Any] = []
    compiled = optimize(
        program, lambda capture, _: captured.append(capture) or executor(capture), recompile_limit=50, dynamic=False
    )
    arguments = [[torch.ones(3), first, keyword, 4], {"keyword_only": 2, "z": 5}]

    def step() -> None:
        expected = outcome(program, arguments)
        assert not differences(outcome(compiled, arguments), expected), (reads, expected)

    step()
    before = len(captured)
    step()
    assert len(captured) == before, "the same call was captured again"
    for name in order.sample(sorted(changes(names, put, first, keyword)), 4):
        changes(names, put, first, keyword)[name]()
        step()
        again = len(captured)
        step()
        assert len(captured) == again, (name, reads)
    x = order.choice((torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(3, requires_grad=True)))
    arguments[0][0] = x  # type: ignore[index]
    step()
    arguments[0][3] = order.choice((7, 4.0, True))  # type: ignore[index]
    step()
    with torch.no_grad():
        step()


def outcome(function: Any, arguments: Any) -> Any:
    try:
        return function(*arguments[0], **arguments[1])
    except Exception as error:
        return type(error)
