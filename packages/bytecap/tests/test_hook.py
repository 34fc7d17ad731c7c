"""The frame hook: replacement code runs in the frame's place, everything else stays as it was."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import traceback
import types
import weakref

import pytest
from bytecode import Bytecode, Instr

from bytecap import hook
from bytecap._evalframe import GuardProgram
from bytecap.hook import Dispatcher, Entry, FrameView, Owner, call_with_owner


def replace_constant(code: types.CodeType, old: object, new: object) -> types.CodeType:
    """The same code with one literal changed, assembled again by hand."""
    listing = Bytecode.from_code(code)
    for position, instruction in enumerate(listing):
        loads = isinstance(instruction, Instr) and instruction.name in ("LOAD_CONST", "RETURN_CONST")
        if loads and type(instruction.arg) is type(old) and instruction.arg == old:
            listing[position] = Instr(instruction.name, new, location=instruction.location)
    return listing.to_code()


def first_is(name: str, value: object) -> GuardProgram:
    """A guard on the first argument. (These tests run without torch, too, and so without `bytecap.guards`.)"""
    return GuardProgram(((-1, "local", (name, None, 0), (("equals", (value, 0, ()), 0),), 0),))


def owner_for(code: types.CodeType, replacement: types.CodeType) -> Owner:
    owner = Owner(lambda view: Entry(None, replacement))
    hook.enable(code, owner)
    return owner


def swap(function, old: object, new: object) -> Owner:
    code = function.__code__
    return owner_for(code, replace_constant(code, old, new))


# ---- replacement runs for every kind of signature ------------------------------------------


def positional(a, b):
    return ("old", a, b)


def defaults(a, b=2, *, c=3, d):
    return ("old", a, b, c, d)


def variadic(a, /, b, *rest, c=0, **named):
    return ("old", a, b, rest, c, named)


def locals_and_loops(n):
    total = 0
    for index in range(n):
        square = index * index
        total += square
    return ("old", total, list(range(n)), dict(zip("ab", (1, 2), strict=True)))


def cell_argument(a, b):
    def inner():
        return a + b

    return ("old", inner())


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (positional, (1, 2), {}),
        (positional, (), {"b": 1, "a": 2}),
        (defaults, (1,), {"d": 4}),
        (defaults, (1, 5), {"c": 7, "d": 4}),
        (variadic, (1, 2), {}),
        (variadic, (1, 2, 3, 4), {"c": 5, "x": 6, "a": 7}),
        (locals_and_loops, (4,), {}),
        (cell_argument, (1, 2), {}),
    ],
)
def test_replacement_sees_the_same_arguments(function, args, kwargs) -> None:
    owner = swap(function, "old", "new")
    expected = ("new", *function(*args, **kwargs)[1:])
    for _ in range(3):
        assert call_with_owner(owner, function, *args, **kwargs) == expected
    assert (owner.hits, owner.misses) == (3, 1)
    assert function(*args, **kwargs)[0] == "old"


def test_closure_cells_are_the_functions_own() -> None:
    count = 0

    def counter(step):
        nonlocal count
        count += step
        return ("old", count)

    owner = swap(counter, "old", "new")
    assert call_with_owner(owner, counter, 2) == ("new", 2)
    assert call_with_owner(owner, counter, 3) == ("new", 5)
    assert counter(1) == ("old", 6)


def test_methods_and_super() -> None:
    class Base:
        def value(self):
            return 1

    class Child(Base):
        def value(self):
            return ("old", super().value(), __class__.__name__)

    owner = swap(Child.value, "old", "new")
    assert call_with_owner(owner, Child().value) == ("new", 1, "Child")


def test_replacement_may_have_more_locals_and_a_deeper_stack() -> None:
    def small(a):
        return a

    def large(a):
        b = c = d = e = f = g = h = i = a
        return (a, b, c, d, e, f, g, h, i, (a, (b, (c, (d, (e, (f, (g, (h, i)))))))))

    owner = owner_for(small.__code__, large.__code__)
    assert call_with_owner(owner, small, 1) == large(1)

    def many(a):
        return a

    listing = "\n".join(f"    v{i} = a + {i}" for i in range(300))
    space: dict[str, object] = {}
    exec(f"def many_locals(a):\n{listing}\n    return sum(locals().values())", space)
    expected = space["many_locals"](2)
    owner = owner_for(many.__code__, space["many_locals"].__code__)
    assert call_with_owner(owner, many, 2) == expected


def test_frame_view() -> None:
    seen: list[FrameView] = []
    free = [1]

    def function(a, b=2, *rest, c, **named):
        local = a
        return (local, free)

    owner = Owner(seen.append)
    hook.enable(function.__code__, owner)
    call_with_owner(owner, function, 1, c=3, z=4)
    (view,) = seen
    assert view.code is function.__code__
    assert view.function is function
    assert view.globals is globals()
    assert view.builtins["len"] is len
    assert view.locals == {"a": 1, "b": 2, "rest": (), "c": 3, "named": {"z": 4}}
    assert view.cells["free"] is function.__closure__[0]
    assert view.cells["free"].cell_contents is free


# ---- generators, coroutines ----------------------------------------------------------------


def test_generators_and_coroutines_run_plain() -> None:
    def numbers(n):
        yield from range(n)

    async def answer():
        return 42

    owner = Owner(lambda view: pytest.fail("asked for a generator"))
    hook.enable(numbers.__code__, owner)
    hook.enable(answer.__code__, owner)
    assert list(call_with_owner(owner, numbers, 3)) == [0, 1, 2]
    with pytest.raises(StopIteration) as stop:
        call_with_owner(owner, answer).send(None)
    assert stop.value.value == 42


def test_code_called_from_a_generator_inside_the_scope_is_captured() -> None:
    def leaf(x):
        return ("old", x)

    def generate():
        yield leaf(1)
        yield leaf(2)

    owner = swap(leaf, "old", "new")
    assert call_with_owner(owner, lambda: list(generate())) == [("new", 1), ("new", 2)]


# ---- guards, the cache ---------------------------------------------------------------------


def test_entries_are_tried_and_move_to_front() -> None:
    def function(kind):
        return ("old", kind)

    def callback(view: FrameView) -> Entry:
        kind = view.locals["kind"]
        return Entry(
            first_is("kind", kind),
            replace_constant(view.code, "old", f"for {kind}"),
            payload=kind,
        )

    owner = Owner(callback)
    hook.enable(function.__code__, owner)
    for kind in "abcaab":
        assert call_with_owner(owner, function, kind) == (f"for {kind}", kind)
    assert (owner.hits, owner.misses) == (6, 3)
    found = hook.entries(function.__code__, owner)
    assert [entry.payload for entry in found] == ["b", "a", "c"]
    assert {entry.payload: entry.hits for entry in found} == {"a": 3, "b": 2, "c": 1}
    assert hook.remove_entry(function.__code__, found[0])
    assert not hook.remove_entry(function.__code__, found[0])
    assert len(hook.entries(function.__code__)) == 2
    hook.reset(function.__code__)
    assert hook.entries(function.__code__) == ()


def test_an_entry_whose_own_guard_fails_runs_plain_and_is_reported() -> None:
    reports = []
    owner = Owner(
        lambda view: Entry(first_is("a", 2), (lambda a: "wrong").__code__),
        report=lambda view, entry: reports.append((view.locals, entry)),
    )

    def function(a):
        return "plain"

    hook.enable(function.__code__, owner)
    assert call_with_owner(owner, function, 1) == "plain"
    assert owner.rejected == 1
    assert reports[0][0] == {"a": 1}
    assert isinstance(reports[0][1], Entry)


def test_two_owners_of_one_code() -> None:
    def function():
        return "old"

    first = swap(function, "old", "first")
    second = swap(function, "old", "second")
    assert call_with_owner(first, function) == "first"
    assert call_with_owner(second, function) == "second"
    assert len(hook.entries(function.__code__)) == 2
    assert len(hook.entries(function.__code__, first)) == 1
    hook.reset(function.__code__, first)
    assert len(hook.entries(function.__code__)) == 1
    del second
    gc.collect()
    assert hook.entries(function.__code__) == ()


def test_skip_and_disable() -> None:
    def function():
        return "old"

    owner = swap(function, "old", "new")
    assert hook.status(function.__code__, owner) == "enabled"
    hook.skip(function.__code__, owner)
    assert hook.status(function.__code__, owner) == "skipped"
    assert call_with_owner(owner, function) == "old"
    hook.enable(function.__code__, owner)
    assert call_with_owner(owner, function) == "new"
    hook.disable(function.__code__)
    assert hook.status(function.__code__, owner) == "disabled"
    assert call_with_owner(owner, function) == "old"
    hook.disable(function.__code__, False)
    assert call_with_owner(owner, function) == "new"
    assert hook.status((lambda: None).__code__, owner) == "unmarked"


def test_disabled_code_hides_what_it_calls() -> None:
    def leaf():
        return "old"

    def middle():
        return leaf()

    owner = swap(leaf, "old", "new")
    assert call_with_owner(owner, middle) == "new"
    hook.disable(middle.__code__)
    assert call_with_owner(owner, middle) == "old"


@pytest.mark.parametrize(
    ("replacement", "fault"),
    [
        (lambda: 0, "arguments"),
        (lambda a, b: 0, "arguments"),
        (lambda *a: 0, "arguments"),
        (lambda a, **b: 0, "flags"),
        (lambda a: (yield), "generator"),
    ],
)
def test_replacement_of_another_layout_is_refused(replacement, fault) -> None:
    def function(a):
        return a

    owner = owner_for(function.__code__, replacement.__code__)
    with pytest.raises(ValueError, match=fault):
        call_with_owner(owner, function, 1)
    assert function(1) == 1


def test_a_frame_runs_plain_alone_or_with_all_that_it_calls() -> None:
    def inner():
        return "old"

    def function():
        return inner()

    new = replace_constant(inner.__code__, "old", "new")
    for answer, result in ((None, "new"), (False, "old")):
        view_of = {function.__code__: answer, inner.__code__: Entry(None, new)}
        owner = Owner(lambda view, view_of=view_of: view_of[view.code], recursive=True)
        hook.enable(function.__code__, owner)
        assert call_with_owner(owner, function) == result
        assert not hook.entries(function.__code__)


def test_callback_must_return_an_entry() -> None:
    def function():
        return "old"

    owner = Owner(lambda view: "nonsense")
    hook.enable(function.__code__, owner)
    with pytest.raises(TypeError, match="Entry, None or False, not str"):
        call_with_owner(owner, function)


# ---- scopes --------------------------------------------------------------------------------


def test_only_inside_the_scope_and_hook_installed_only_then() -> None:
    states = []

    def function():
        states.append((hook.hook_installed(), hook.active_owner()))
        return "old"

    owner = swap(function, "old", "new")
    assert function() == "old"
    call_with_owner(owner, lambda: states.append((hook.hook_installed(), hook.active_owner())))
    assert call_with_owner(owner, function) == "new"
    # outside; in the scope; under the captured frame, where nothing more is captured
    assert states == [(False, None), (True, owner), (False, None)]
    assert not hook.hook_installed()


def test_nested_frames_of_a_plain_owner_run_plain() -> None:
    def leaf():
        return "old"

    def outer():
        return ("outer", leaf())

    owner = swap(leaf, "old", "new")
    hook.enable(outer.__code__, Owner(lambda view: None))
    assert call_with_owner(owner, outer) == ("outer", "new")
    code = replace_constant(outer.__code__, "outer", "captured")
    both = Owner(lambda view: Entry(None, code) if view.code is outer.__code__ else None)
    hook.enable(outer.__code__, both)
    hook.enable(leaf.__code__, both)
    assert call_with_owner(both, outer) == ("captured", "old")
    assert both.misses == 1


def test_recursive_owner_is_asked_for_every_frame_until_skipped() -> None:
    asked = []

    def leaf():
        return "old"

    def outer():
        return [leaf() for _ in range(3)]

    def callback(view: FrameView) -> Entry | None:
        asked.append(view.code.co_name)
        if view.code is leaf.__code__:
            return Entry(None, replace_constant(view.code, "old", "new"))
        hook.skip(view.code, owner)
        return None

    owner = Owner(callback, recursive=True)
    for _ in range(2):
        assert call_with_owner(owner, outer) == ["new"] * 3
    assert sorted(set(asked) - {"<listcomp>"}) == ["leaf", "outer"]
    assert len(asked) == len(set(asked))


def test_plain_suspends_capture() -> None:
    def leaf():
        return "old"

    owner = swap(leaf, "old", "new")
    sheltered = hook.plain(leaf)
    assert call_with_owner(owner, lambda: (leaf(), sheltered(), leaf())) == ("new", "old", "new")


def test_capture_does_not_capture_itself() -> None:
    def leaf(x):
        return "old" if x else x

    def callback(view: FrameView) -> Entry:
        assert leaf(1) == "old"
        assert call_with_owner(owner, leaf, 1) == "old"
        return Entry(None, replace_constant(view.code, "old", "new"))

    owner = Owner(callback, recursive=True)
    hook.enable(leaf.__code__, owner)
    assert [call_with_owner(owner, leaf, 1) for _ in range(3)] == ["new"] * 3


def test_dispatcher() -> None:
    def function(a, *, b=0):
        return ("old", a, b)

    owner = swap(function, "old", "new")
    dispatcher = Dispatcher(owner, function)
    assert dispatcher(1, b=2) == ("new", 1, 2)
    assert dispatcher(*[1], **{"b": 3}) == ("new", 1, 3)
    assert dispatcher.__wrapped__ is function
    assert dispatcher.owner is owner
    dispatcher.note = "kept"
    assert dispatcher.note == "kept"
    assert inspect.signature(dispatcher) == inspect.signature(function)
    assert weakref.ref(dispatcher)() is dispatcher

    class Holder:
        method = dispatcher

    holder = Holder()
    assert holder.method() == ("new", holder, 0)
    assert Holder.method is dispatcher
    with pytest.raises(TypeError, match="callable"):
        Dispatcher(owner, 3)
    with pytest.raises(TypeError, match="missing 1 required"):
        dispatcher()


# ---- exceptions ----------------------------------------------------------------------------


def test_exceptions_have_the_users_lines() -> None:
    def function(a):
        marker = "old"
        if a:
            raise KeyError(marker)
        return marker

    owner = swap(function, "old", "new")
    line = function.__code__.co_firstlineno + 3
    for _ in range(3):
        with pytest.raises(KeyError, match="new") as caught:
            call_with_owner(owner, function, 1)
        last = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (last.filename, last.lineno, last.name) == (__file__, line, "function")
    assert call_with_owner(owner, function, 0) == "new"


def test_try_finally_with_inside_replacement() -> None:
    def function(a):
        log = []
        try:
            log.append("old")
            1 // a
        except ZeroDivisionError as error:
            log.append(type(error).__name__)
        finally:
            log.append("finally")
        return log

    owner = swap(function, "old", "new")
    assert call_with_owner(owner, function, 0) == ["new", "ZeroDivisionError", "finally"]
    assert call_with_owner(owner, function, 1) == ["new", "finally"]


def test_callback_errors_propagate_and_release_the_arguments() -> None:
    class Token:
        pass

    def function(a, *rest, **named):
        return "old"

    def callback(view: FrameView) -> None:
        raise LookupError("no capture")

    owner = Owner(callback)
    hook.enable(function.__code__, owner)
    for _ in range(50):
        token = Token()
        gone = weakref.ref(token)
        with pytest.raises(LookupError, match="no capture") as caught:
            call_with_owner(owner, function, token, token, t=token)
        del token, caught
        assert gone() is None
    assert function(1) == "old"


# ---- recursion -----------------------------------------------------------------------------


def recurse(n):
    return ("old", 0)[1] if n == 0 else recurse(n - 1) + 1


def depth_reached(call) -> int:
    """How deep a function can recurse before RecursionError."""
    deepest = 0

    def descend(depth):
        nonlocal deepest
        deepest = depth
        descend(depth + 1)

    with pytest.raises(RecursionError):
        call(descend)
    return deepest


def test_recursion_in_a_recursive_owner() -> None:
    owner = Owner(lambda view: Entry(None, replace_constant(view.code, "old", "new")), recursive=True)
    hook.enable(recurse.__code__, owner)
    assert call_with_owner(owner, recurse, 200) == 200
    assert owner.hits == 201


def test_recursion_limit_is_cpythons() -> None:
    limit = sys.getrecursionlimit()
    nobody = Owner(lambda view: None)
    try:
        for bound in (limit, 3000):
            sys.setrecursionlimit(bound)
            expected = depth_reached(lambda descend: descend(0))
            hooked = depth_reached(lambda descend: call_with_owner(nobody, descend, 0))
            assert abs(hooked - expected) <= 3
    finally:
        sys.setrecursionlimit(limit)


def test_deep_recursion_through_swapped_frames_crosses_stack_chunks() -> None:
    """Chunk ends have no room to grow a frame: there the replacement is called (way B)."""

    def small(n, *rest, k, **named):
        return None

    listing = "\n".join(f"    v{i} = n" for i in range(40))
    space: dict[str, object] = {"small": small}
    exec(
        f"def large(n, *rest, k, **named):\n{listing}\n"
        "    assert rest == (1, 2) and k == 3 and named == {'z': 4}\n"
        "    return 0 if n == 0 else small(n - 1, *rest, k=k, **named) + 1",
        space,
    )
    small_in_space = types.FunctionType(small.__code__, space, "small")
    small_in_space.__kwdefaults__ = None
    space["small"] = small_in_space
    owner = Owner(lambda view: Entry(None, space["large"].__code__), recursive=True)
    hook.enable(small.__code__, owner)
    for _ in range(3):
        assert call_with_owner(owner, small_in_space, 400, 1, 2, k=3, z=4) == 400
    assert 0 < owner.called < owner.hits / 2


# ---- threads, lifetimes --------------------------------------------------------------------


def test_threads_have_their_own_scope() -> None:
    def function(x):
        return ("old", x)

    owner = swap(function, "old", "new")
    failures: list[object] = []
    start = threading.Barrier(4)

    def work(capture: bool) -> None:
        start.wait(10)
        for index in range(3000):
            got = call_with_owner(owner, function, index) if capture else function(index)
            if got != ("new" if capture else "old", index):
                failures.append(got)

    threads = [threading.Thread(target=work, args=(n % 2 == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert not hook.hook_installed()


def test_reset_while_running() -> None:
    def function():
        during()
        return "old"

    def during():
        hook.reset(function.__code__)
        gc.collect()

    owner = swap(function, "old", "new")
    assert [call_with_owner(owner, function) for _ in range(3)] == ["new"] * 3
    assert owner.misses == 3


def test_references_do_not_leak() -> None:
    class Token:
        pass

    def function(a, b=None, *rest, c=None, **named):
        keep = (a, b, rest, c, named, "old")
        return keep[-1]

    owner = swap(function, "old", "new")
    replacement = None
    token = Token()
    call_with_owner(owner, function, token, token, token, c=token, d=token)
    replacement = hook.entries(function.__code__)[0].code
    before = (sys.getrefcount(token), sys.getrefcount(replacement), sys.getrefcount(function))
    code_before = sys.getrefcount(function.__code__)
    for _ in range(500):
        call_with_owner(owner, function, token, token, token, c=token, d=token)
    after = (sys.getrefcount(token), sys.getrefcount(replacement), sys.getrefcount(function))
    code_after = sys.getrefcount(function.__code__)
    assert after == before
    assert code_after == code_before


def test_owner_and_code_may_die_in_any_order() -> None:
    def make() -> types.FunctionType:
        space: dict[str, object] = {}
        exec("def made(a):\n    return ('old', a)", space)
        return space["made"]

    class Payload:
        pass

    def enabled_owner(function) -> tuple[Owner, weakref.ref]:
        payload = Payload()
        replacement = replace_constant(function.__code__, "old", "new")
        owner = Owner(lambda view: Entry(None, replacement, payload))
        hook.enable(function.__code__, owner)
        assert call_with_owner(owner, function, 1) == ("new", 1)
        return owner, weakref.ref(payload)

    function = make()
    owner, payload = enabled_owner(function)
    assert owner.codes == (function.__code__,)
    del function
    gc.collect()
    assert owner.codes == ()
    function = make()
    owner, payload = enabled_owner(function)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
    assert payload() is None
    assert function(1) == ("old", 1)


def test_a_cycle_through_the_owner_is_collected() -> None:
    def function():
        return "old"

    class Model:
        pass

    model = Model()
    model.owner = Owner(lambda view, model=model: Entry(None, view.code, model))
    hook.enable(function.__code__, model.owner)
    assert call_with_owner(model.owner, function) == "old"
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_frames_seen_by_python_are_ordinary() -> None:
    def function(a):
        frame = sys._getframe()
        return (frame.f_code.co_name, frame.f_locals["a"], frame.f_back.f_code.co_name, "old")

    owner = swap(function, "old", "new")
    name = "test_frames_seen_by_python_are_ordinary"
    assert call_with_owner(owner, function, 5) == ("function", 5, name, "new")


def test_trace_functions_see_the_replacement() -> None:
    events = []

    def function():
        value = "old"
        return value

    def trace(frame, event, arg):
        if frame.f_code.co_name == "function":
            events.append((event, frame.f_lineno - function.__code__.co_firstlineno))
            return trace
        return None

    owner = swap(function, "old", "new")
    call_with_owner(owner, function)
    sys.settrace(trace)
    try:
        assert call_with_owner(owner, function) == "new"
    finally:
        sys.settrace(None)
    assert events == [("call", 0), ("line", 1), ("line", 2), ("return", 2)]
