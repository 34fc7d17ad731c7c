"""Graph breaks in every place: what stands before and behind them is captured, and the program is as plain."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from bytecap import Broke, Captured, CaptureWarning, LimitReached, executor, optimize
from bytecap.testing.programs import Programs
from stagewire.errors import StageError

PROGRAMS = Programs()


def vector():
    return torch.linspace(0.1, 0.7, 4)


def matrix():
    return torch.linspace(-1.0, 1.0, 9).reshape(3, 3)


class Manager:
    def __init__(self, log, swallowed=()):
        self.log = log
        self.swallowed = swallowed

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, cls, raised, traceback):
        self.log.append(("exit", cls))
        return cls in self.swallowed


@PROGRAMS.add(vector, refusal="BC004")
def in_with(x):
    log = []
    with Manager(log), torch.no_grad():
        y = x * 2 + 1
        y = y * y.sum().item()
        inside = torch.is_grad_enabled()
    return y * 2, inside, torch.is_grad_enabled(), log


@PROGRAMS.add(lambda: torch.tensor([1, 2, 3]), matrix, refusal="BC004")
def in_containers_under_construction(sizes, x):
    rows = [torch.nn.functional.pad(x, (0, 4 - size)) for size in sizes]
    named = {int(size) + 1: x.view(size, -1) for size in sizes[::2]}
    numbers = {torch.ones(2).expand(size, 2).numel() for size in sizes}
    star = [*rows, x.sum().item(), *(x * size.item() for size in sizes)]
    return rows, named, numbers, star


def function_over_many_variables(count):
    names = [f"name_{index}" for index in range(count)]
    added = [f"        y = y + {name}" for name in names]
    lines = [f"def outer({', '.join(names)}):", "    def inner(x):", "        y = x * x.sum().item()", *added]
    found = {}
    exec("\n".join([*lines, "        return y", "    return inner"]), found)
    return found["outer"](*range(count))


OVER_MANY_VARIABLES = function_over_many_variables(40)


@PROGRAMS.add(vector, refusal="BC004")
def over_many_variables(x):
    """Segments are closed over all of them: conftest.py looks whether the stack has room."""
    return OVER_MANY_VARIABLES(x)


@contextlib.contextmanager
def noted(log):
    try:
        yield 3
    finally:
        log.append("left")


@PROGRAMS.add(vector, refusal="BC004")
def raised_through_a_generator_manager(x):
    log = []
    try:
        with noted(log) as value:
            y = x * x.sum().item()
            raise KeyError(value)
    except KeyError as error:
        return y + error.args[0], log, error.__traceback__ is None


@PROGRAMS.add(vector, refusal="BC004")
def in_a_with_that_swallows(x):
    log = []
    y = x
    with Manager(log, (KeyError,)):
        y = x * x.sum().item()
        raise KeyError("gone")
    return y + 1, log


@PROGRAMS.add(vector, refusal="BC004")
def return_from_a_with(x):
    log = []
    for i in range(3):
        with Manager(log):
            v = x.sum().item()
            x = x + 1
            if i == 1:
                return x * v, log
    return None


@PROGRAMS.add(vector, refusal="BC004")
def in_try(x):
    seen = []
    try:
        y = x.sin()
        v = y.sum().item()
        y = y * v
        if v > -100:
            raise ValueError(f"got {v:.2f}")
    except ValueError as error:
        y = x.cos()
        n = y.sum().item()
        seen.append((str(error), n, sys.exception() is error))
        y = y + n
        try:
            raise KeyError("k")
        except KeyError as inner:
            m = y.mean().item()
            seen.append((repr(inner), repr(inner.__context__), sys.exception() is inner))
            y = y - m
        seen.append(repr(sys.exception()))
    finally:
        q = x.sum().item()
    seen.append(sys.exception())
    return y + q, seen


@PROGRAMS.add(vector, refusal="BC004")
def error_behind_a_break(x):
    log = []
    try:
        y = x * x.sum().item()
        return 1 // 0
    except ZeroDivisionError as error:
        return y, str(error), log
    finally:
        log.append("finally")


@PROGRAMS.add(lambda: [], vector, refusal="BC004")
def uncaught_error(log, x):
    y = x + 1
    log.append("before")
    z = y * y.sum().item()
    log.append(z)
    raise RuntimeError("as plain")


@PROGRAMS.add(vector, refusal="BC004")
def cells(x):
    n = 0

    def add(k):
        nonlocal n
        n += k
        return n

    y = x * add(1)
    v = y.sum().item()
    y = y + add(2)
    w = y.sum().item()
    return y * add(3), n, v, w, add(1)


@PROGRAMS.add(vector, refusal="BC004")
def cell_of_an_argument(x):
    seen = []

    def note():
        seen.append(x)
        return len(seen)

    note()
    v = x.sum().item()
    x = x + 1
    return note(), seen, x * v


@PROGRAMS.add(vector, refusal="BC004")
def in_a_comprehension(x):
    y = x * 2
    return [y * k.item() for k in x], [i + 1 for i in range(3)], y + 1


@PROGRAMS.add(vector, refusal="BC004")
def comprehensions_with_cells(x):
    i = 7
    outer, seen = (lambda: i), []
    y = x * 2
    for k in range(2):
        seen.append([lambda: (i, y) for i in (k, k + 1)])  # noqa: B023 (that is the point)
        try:
            seen.append([(lambda: i, x[j].item() // (j - 1)) for j in (0, 1) for i in (j, 5)])  # noqa: B023
        except ZeroDivisionError:
            seen.append([lambda: x for x in (3, 4)])  # noqa: B023
    y = y + 1
    return [function() if callable(function) else function[0]() for row in seen for function in row], outer(), i, x


WIDE = f"""
def a_line_that_is_wide(x):
    y = x * 2
    wide = "{"wide" * 40}"
    return x.sum().item() + len(wide), y
"""
"""Columns beyond 127 take another form in the table of lines."""
WIDE_NAMES: dict[str, Any] = {}
exec(compile(WIDE, "wide.py", "exec"), WIDE_NAMES)
PROGRAMS.add(vector, refusal="BC004")(WIDE_NAMES["a_line_that_is_wide"])


@PROGRAMS.add(vector, refusal="BC004")
def comprehensions_with_and_without_cells_of_one_name(x):
    made = [lambda: k for k in (1, 2)], [k + 1 for k in (3, 4)]  # noqa: B023 (that is the point)
    y = x * x.sum().item()
    nested = [[lambda: k for k in (k, k + j)] for k, j in ((5, 6), (7, 8)) if k > j - 2]  # noqa: B023
    try:
        failed = [k for k in (2, 1, 0) if 4 // k], [lambda: k for k in (9,)]  # noqa: B023
    except ZeroDivisionError:
        failed = {k: y for k, _ in zip("ab", x, strict=False)}, [lambda: k for k in (y.sum().item(),)]  # noqa: B023
    functions = [*made[0], *[function for row in nested for function in row], *failed[1]]
    return [function() for function in functions], made[1], failed[0], y


def shadowed(q, r, s):
    def program(x):
        before, x = q, x * 2
        v = x.sum().item()
        made = [q + 0 for q in range(3)], [lambda: r + s for _ in range(3)], before, v, (lambda: r)
        x = x + 1
        return made[0], [function() for function in made[1]], made[2:4], made[4](), x

    return program


SHADOWED = shadowed(1, 2, 3)


@PROGRAMS.add(vector, refusal="BC004")
def a_free_variable_and_that_of_a_comprehension(x):
    return SHADOWED(x)


@PROGRAMS.add(vector, refusal="BC004")
def in_loops(x):
    total = 0
    for a in (1, 2):
        for k, b in enumerate([x, x + 1]):
            total = total + b.sum().item() * a + k
            x = x * 1.5
            if total > 50:
                break
        else:
            x = x - 1
    while x.sum().item() < 20:
        x = x + 3
    return x, total


@PROGRAMS.add(vector, refusal="BC004")
def in_a_callee(x):
    def inner(z):
        w = z.exp()
        return w / w.sum().item()

    a = inner(x)
    return a + inner(a)


@PROGRAMS.add(vector, lambda: True, refusal="BC004")
@PROGRAMS.add(vector, lambda: False, refusal="BC004")
def perhaps_unbound(x, flag):
    if flag:
        q = x * 3
    v = x.sum().item()
    try:
        return q + v
    except UnboundLocalError as error:
        return str(error)


@PROGRAMS.add(vector, lambda: 1, lambda: 2, refusal="BC004", k=lambda: 3, other=vector)
def every_kind_of_argument(x, *args, k=1, **kwargs):
    v = x.sum().item()
    return x * v, args, k, kwargs


@PROGRAMS.add(vector, refusal="BC004")
def deleted(x):
    y = x * 2
    v = y.sum().item()
    del x
    z = y + v
    try:
        return x  # noqa: F821 (that is the point)
    except UnboundLocalError:
        return z


@PROGRAMS.add(vector, refusal="BC004")
def a_class_statement(x):
    class Holder:
        pass

    held = Holder()
    held.a = x * 2
    held.b = held.a.sum().item()
    return held.a * held.b, held.b


@PROGRAMS.add(vector, lambda: [1], refusal="BC004")
def identity(x, items):
    items.append(x * 2)
    held = {"x": x, "items": items}
    held["items"].append(x.sum().item())
    return held["items"] is items, held["x"] is x, items[-2] + 1


@PROGRAMS.add(matrix, refusal="BC004")
def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        v = y.sum().item()
        z = y @ x
    return y, z, x @ x, v, torch.is_autocast_enabled("cpu")


@PROGRAMS.add(vector, refusal="BC004")
def in_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
        z = y * y.sum().item()
    return z.is_inference(), z


@PROGRAMS.add(vector, refusal="BC004")
def grad_mode(x):
    torch.set_grad_enabled(False)
    y = x * x.sum().item()
    inside = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return y, inside


class Base(nn.Module):
    def forward(self, x):
        return x * x.sum().item()


class Derived(Base):
    def forward(self, x):
        y = x + 1
        k = y.mean().item()
        y = super().forward(y)
        return super().forward(y) + k + y.mean().item()


DERIVED = Derived()


@PROGRAMS.add(vector, refusal="BC004")
def bare_super(x):
    return DERIVED(x) + 1


@PROGRAMS.add(vector, refusal="BC004")
def generators(x):
    def pieces():
        yield x + 1
        yield x * 2

    return sum(piece.sum().item() for piece in pieces()) + x


@PROGRAMS.add(vector, refusal="BC004")
def a_match(x):
    match {"a": [1, x.sum().item()]}:
        case {"a": [1, k]} if k > -1e9:
            return x * k


@PROGRAMS.add(vector, refusal="BC004")
def inside_expressions(x):
    if (n := x.sum().item()) > -1e9 and (m := x * n) is not None:
        return f"{x.sum().item():.2f} {(x * 2).sum().item()!r:>8}", max(n, (x * 2).sum().item(), key=abs) * m


@PROGRAMS.add(vector, refusal="BC004")
def prints(x):
    print("a", tuple(x.shape))
    v = x.sum().item()
    print(f"{v:.3f}")
    y = x * 2
    print("end")
    return y


@PROGRAMS.add(vector, refusal="BC004")
def writes_its_input(x):
    x.add_(1)
    v = x.sum().item()
    x.mul_(v)


@PROGRAMS.add(vector, refusal="BC004")
def context_stack(x):
    log = []
    with contextlib.ExitStack() as stack, contextlib.suppress(ValueError):
        stack.callback(log.append, "left")
        y = x * 2
        z = y * y.sum().item()
        log.append(z)
        raise ValueError
    return log


@PROGRAMS.add(vector, refusal="BC004")
def a_branch(x):
    y = x * 2
    assert y.sum() > -1e9, "no"
    y = y + 1 if y.sum() > 0 else y - 1
    return y * 2


@PROGRAMS.add(vector, refusal="BC004")
def recursion(x, n=3):
    if n == 0:
        return x
    v = x.sum().item()
    return recursion(x * 0.5 + v * 0.01, n - 1) + 1


@PROGRAMS.add(vector, refusal="BC004")
def masks(x):
    y = x.clone()
    y[y > 0.3] = 0
    index = torch.nonzero(y)
    return (y + 1)[index[:, 0]]


@PROGRAMS.add(vector, refusal="BC004")
def own_variables(x):
    y = x * 2
    v = y.sum().item()
    return sorted(locals()), y * v


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def graphs(function, *arguments):
    """The sizes of the graphs of one call, and the codes of its breaks."""
    events = []
    optimize(function, lambda capture, inputs: executor(capture), on_event=events.append)(*arguments)
    sizes = [len(event.capture.graph.nodes) for event in events if isinstance(event, Captured)]
    return sizes, [event.error.code for event in events if isinstance(event, Broke)]


def test_both_sides_of_a_break_are_captured():
    def f(x):
        y = x.sin() + 1
        z = y.sum().item()
        return (y * z).cos()

    assert graphs(f, vector()) == ([3, 2], ["BC004"])


def test_a_single_call_between_two_breaks_runs_plain():
    def f(x):
        y = x.relu() * 2
        sums = [y.sum().item()]
        y = y.cos()
        sums.append(y.tolist())
        return y * 2 + 1, sums

    events = []
    call = optimize(f, lambda capture, inputs: executor(capture), on_event=events.append)
    for _ in range(2):
        assert str(call(vector())) == str(f(vector()))
    made = [event.capture for event in events if isinstance(event, Captured)]
    assert [capture.graph.nodes[0].target for capture in made] == [
        "torch.Tensor.relu",
        "operator.mul",
    ]
    assert [event.error.code for event in events if isinstance(event, Broke)] == ["BC004", "BC004"]


def test_a_loop_does_not_nest_and_is_captured_once():
    depths, events = [], []

    def opaque(x):
        depth = len(list(_frames()))
        depths.append(depth)
        return x.sum().item()

    def f(x):
        for _ in range(30):
            x = x * 0.5
            if opaque(x) < 0:
                x = x + 1
        return x

    call = optimize(f, lambda capture, inputs: executor(capture), on_event=events.append)
    assert torch.equal(call(vector()), f(vector()))
    made = [event for event in events if isinstance(event, Captured) and event.capture.code.name == f.__qualname__]
    assert len(made) <= 3
    called = depths[:30]
    assert max(called) <= min(called) + 3


def test_a_float_that_changes_is_fixed_once():
    def f(x, rate):
        y = x.sin() + 1
        return (y * rate).cos()

    events = []
    call = optimize(f, lambda capture, inputs: executor(capture), on_event=events.append)
    for i in range(20):
        assert torch.equal(call(vector(), i / 7), f(vector(), i / 7))
    assert len([event for event in events if isinstance(event, Captured)]) == 3
    assert [event.error.code for event in events if isinstance(event, Broke)] == ["BC016"]


def _frames():
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_nothing_is_captured_below_a_disabled_function():
    from bytecap import hook

    def secret(x):
        return x.sin().cos()

    def f(x):
        y = x * 2
        v = y.sum().item()
        return secret(y * v)

    hook.disable(secret.__code__)
    try:
        sizes, _ = graphs(f, vector())
    finally:
        hook.disable(secret.__code__, False)
    assert sum(sizes) >= 3


def test_a_counter_does_not_use_up_the_limit():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            y = x.sin() + 1
            self.calls += 1
            return y * 2

    events = []
    module = Counting()
    call = optimize(module, lambda capture, inputs: executor(capture), on_event=events.append)
    for _ in range(20):
        assert torch.equal(call(vector()), (vector().sin() + 1) * 2)
    assert module.calls == 20
    count = len(events)
    assert not any(isinstance(event, LimitReached) for event in events)
    for _ in range(20):
        call(vector())
    assert len(events) == count


def test_a_method_on_the_stack_is_told_apart_by_its_owner_and_name():
    events = []

    def program(x):
        rows = []
        rows.append((x * 2).sum().item())
        return rows, x + 1

    optimized = optimize(program, lambda capture, inputs: executor(capture), on_event=events.append)
    for _ in range(4):
        assert str(optimized(vector())) == str(program(vector()))
    assert [event.reason for event in events if isinstance(event, Captured) and event.reason] == []


class Hindered(StageError):
    """A backend that takes no call of retain_grad."""

    code = "ZZ001"
    refuses_program = True
    hindering = ("torch.Tensor.retain_grad",)


def test_a_graph_ends_where_a_call_hinders_the_backend():
    """The whole frame ran plain. Here the call is in the second turn of a loop, in a function that is inlined."""
    events, targets = [], []

    def backend(capture, inputs):
        found = [node.target for node in capture.graph.nodes]
        if "torch.Tensor.retain_grad" in found:
            raise Hindered("a gradient is kept")
        targets.append(found)
        return executor(capture)

    def helper(x, number):
        if number == 1:
            x.retain_grad()
        return x * number

    x = vector().requires_grad_()

    def keeps(x):
        y = x.sin()
        for number in range(3):
            y = helper(y.cos(), number)
        return y.exp()

    optimized = optimize(keeps, backend, on_event=events.append)
    for _ in range(2):
        assert torch.equal(optimized(x), keeps(x))
    broken = [event.error for event in events if isinstance(event, Broke)]
    assert {error.code for error in broken} == {"ZZ001"}
    assert "in test_a_graph_ends" in broken[0].where
    assert targets[0][0] == "torch.Tensor.sin"
    assert targets[-1][-1] == "torch.Tensor.exp"
    with pytest.raises(Hindered):
        optimize(keeps, backend, fullgraph=True)(x)


def test_a_graph_ends_where_one_call_hinders_the_backend():
    """The backend names it by what it gives, since other calls of the same function do not hinder."""
    targets = []

    def backend(capture, inputs):
        for node in capture.graph.nodes:
            if node.target.endswith(".mul") and node.args[1] == 2:
                error = Hindered("a product by two")
                error.hindering_result = node.results[0].name
                raise error
        targets.append([node.target.rpartition(".")[2] for node in capture.graph.nodes])
        return executor(capture)

    class Products(torch.nn.Module):
        def forward(self, x):
            return ((x.sin() * 3).cos() * 2).exp() * 4

    products = Products()
    optimized = optimize(products, backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        for _ in range(2):
            assert torch.equal(optimized(vector()), products(vector()))
    assert targets == [["sin", "mul", "cos"], ["exp", "mul"]]
