"""Nothing leaks, nothing is freed too early: compile and drop many times, in threads, with errors."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import threading
import tracemalloc
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from bytecap import _evalframe, executor, hook, optimize
from bytecap.guards import GuardProgram, compile_guards
from bytecap.hook import INPUTS, Entry, FrameView, Owner, call_with_owner
from bytecap.testing import frame_view
from stagewire.capture import Attribute, Equals, Item, Local

EAGER = lambda capture, inputs: executor(capture)  # noqa: E731


def new_function(factor: int) -> types.FunctionType:
    """A function with a code object of its own."""
    space: dict[str, Any] = {"factor": factor}
    exec("def made(x, n=2):\n    return x * n + factor", space)
    return space["made"]


# ---- leaks ---------------------------------------------------------------------------------


def blocks_per_cycle(cycle: Any, *, warm: int, count: int) -> float:
    """Memory blocks of Python that stay behind, per cycle."""
    for _ in range(warm):
        cycle()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(count):
        cycle()
    gc.collect()
    return (sys.getallocatedblocks() - before) / count


def test_a_thousand_compilations_leave_nothing_behind() -> None:
    x = torch.ones(2)

    def cycle() -> None:
        function = new_function(3)
        compiled = optimize(function, EAGER)
        assert compiled(x).tolist() == [5.0, 5.0]
        assert compiled(x, 4).tolist() == [7.0, 7.0]
        assert compiled(x, n=4).tolist() == [7.0, 7.0]

    # Caches and free lists fill up at first.
    assert blocks_per_cycle(cycle, warm=300, count=1000) < 0.5


def test_guard_programs_free_their_memory() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40)))
    source = Local("model")
    guards = [
        Equals(Attribute(Item(Attribute(source, "_modules"), str(index)), "in_features"), 2) for index in range(40)
    ]

    def cycle() -> None:
        program = compile_guards(guards, {"model": model}, inputs=(source,))
        for _ in range(3):
            assert program.check({"model": model})
            assert program.inputs({"model": model}) == (model,)
        assert not program.check({"model": None})
        with pytest.raises(ValueError, match="malformed"):
            GuardProgram((*program.spec[0], (-1, "local", ("a", None, 0), (("length", (None, -1, ()), 0),), 0)))

    for _ in range(20):
        cycle()
    gc.collect()
    tracemalloc.start()
    try:
        cycle()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            cycle()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


def test_refusals_and_errors_leave_nothing_behind() -> None:
    x = torch.ones(2)

    def fails(capture: Any, inputs: Any) -> Any:
        raise LookupError("no backend")

    def cycle() -> None:
        function = new_function(3)
        with pytest.raises(LookupError, match="no backend"):
            optimize(function, fails)(x)
        with pytest.raises(TypeError):
            optimize(function, EAGER, on_event=lambda event: None)(x, 2, 3)
        with pytest.raises(RuntimeError):
            optimize(function, EAGER, on_event=lambda event: None)(x, torch.ones(3))

    assert blocks_per_cycle(cycle, warm=300, count=300) < 1


def test_hook_cycles_leave_no_references() -> None:
    def function(a, *rest, c=None, **named):
        return a

    def replacement(a, *rest, c=None, **named):
        return c

    token = object()
    view = frame_view(function, {"a": token, "rest": (), "c": 1, "named": {}})
    guard = compile_guards([Equals(Local("c"), 1)], view)
    codes = function.__code__, replacement.__code__

    def cycle() -> None:
        owner = Owner(lambda view: Entry(guard, replacement.__code__, token))
        hook.enable(function.__code__, owner)
        for value in (1, 1, 2):  # for 2 the new entry's own guard does not hold: plain
            got = call_with_owner(owner, function, token, token, c=value, d=token)
            assert got == (1 if value == 1 else token)

    for _ in range(20):
        cycle()
    before = [sys.getrefcount(value) for value in (token, guard, *codes)]
    for _ in range(500):
        cycle()
    assert [sys.getrefcount(value) for value in (token, guard, *codes)] == before
    assert hook.entries(function.__code__) == ()


def test_a_model_is_not_kept_by_a_function_that_ran_it() -> None:
    def run(model, x):
        return model(x)

    compiled = optimize(run, EAGER)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.ones(2, 3)
    for _ in range(5):
        assert torch.equal(compiled(model, x), model(x))
    gone = [weakref.ref(model), weakref.ref(model[0].weight), weakref.ref(x)]
    del model, x
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.ones(2, 3)
    assert torch.equal(compiled(model, x), model(x))


def test_a_compiled_model_goes_with_its_callable() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = optimize(model, EAGER)
    compiled(torch.ones(2, 3))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is not None
    del compiled
    gc.collect()
    assert gone() is None


def test_code_that_dies_while_its_owner_looks_on() -> None:
    """Payloads freed with a code object run code; they must not find the dying code."""
    owners: list[Owner] = []
    seen: list[tuple[Any, ...]] = []

    class Payload:
        def __del__(self) -> None:
            seen.append(owners[0].codes + owners[1].codes)

    function = new_function(1)
    for _ in range(2):
        owner = Owner(lambda view: Entry(None, view.code.replace(co_name="other"), Payload()))
        hook.enable(function.__code__, owner)
        assert call_with_owner(owner, function, 1) == 3
        owners.append(owner)
    del function
    gc.collect()
    assert seen == [(), ()]


def test_entries_that_are_dropped_while_their_guards_run() -> None:
    """Guards run no code of the program's, but a garbage collection may: here they make one."""

    def function():
        return "old"

    class Resets:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            hook.reset(function.__code__)
            owner.__init__(owner.callback)

    guard = GuardProgram(((-1, "call", ((), gc.collect, 0), (), 0),))
    owner = Owner(lambda view: Entry(guard, (lambda: "new").__code__))
    hook.enable(function.__code__, owner)
    for leaves_garbage in (True, False, True):
        if leaves_garbage:
            Resets()
        assert call_with_owner(owner, function) == "new"


# ---- threads -------------------------------------------------------------------------------


def run_threads(*targets: Any) -> None:
    failures: list[BaseException] = []

    def guarded(target: Any) -> None:
        try:
            target()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert not hook.hook_installed()


def test_threads_compile_and_call_one_function() -> None:
    function = new_function(1)
    compiled = optimize(function, EAGER, recompile_limit=64)
    x = torch.ones(2)

    def work() -> None:
        for index in range(60):
            assert compiled(x, index % 3).tolist() == [index % 3 + 1.0] * 2

    run_threads(work, work, work, lambda: [function(x, 3) for _ in range(200)])
    assert len(hook.entries(function.__code__)) == 3


def test_threads_with_a_model_that_changes() -> None:
    """One thread flips a flag; the others must see one of the two answers, never a mixture."""

    class Flagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.shift = 0

        def forward(self, x):
            return self.linear(x) * 0 + self.shift

    model = Flagged()
    compiled = optimize(model, EAGER)
    x = torch.ones(1, 3)

    def flip() -> None:
        for index in range(2000):
            model.shift = index % 2
            if index % 100 == 0:
                model.linear = nn.Linear(3, 3)

    def call() -> None:
        for _ in range(150):
            assert compiled(x).tolist() in ([[0.0] * 3], [[1.0] * 3])

    run_threads(flip, call, call)


def test_threads_that_compile_functions_of_their_own() -> None:
    x = torch.ones(2)

    def work() -> None:
        for index in range(25):
            assert optimize(new_function(index), EAGER)(x).tolist() == [2.0 + index] * 2

    run_threads(work, work, work)


def test_grad_mode_belongs_to_the_thread() -> None:
    compiled = optimize(lambda x: x * 2, EAGER)
    x = torch.ones(2, requires_grad=True)

    def with_grad() -> None:
        for _ in range(100):
            assert compiled(x).requires_grad

    def without() -> None:
        with torch.no_grad():
            for _ in range(100):
                assert not compiled(x).requires_grad

    run_threads(with_grad, without, with_grad)


# ---- inputs --------------------------------------------------------------------------------


def with_inputs(factor: int) -> types.CodeType:
    """Code like `def made(a, *rest, k, **named)` that returns its hidden inputs."""
    from bytecode import Bytecode, Instr

    made = Bytecode()
    made.name, made.argcount, made.kwonlyargcount = "made", 1, 1
    made.argnames = ["a", "k", "rest", "named"]
    made.flags = 0x0F
    made.extend([Instr("RESUME", 0), Instr("LOAD_FAST", INPUTS), Instr("LOAD_CONST", factor)])
    made.extend([Instr("BUILD_TUPLE", 2), Instr("RETURN_VALUE")])
    return made.to_code()


def original(a, *rest, k, **named):
    return "plain"


def test_the_guard_programs_inputs_reach_the_replacement() -> None:
    def callback(view: FrameView) -> Entry:
        guard = compile_guards(
            [Equals(Local("k"), view.locals["k"])], view, inputs=(Local("a"), Local("k"), Local("a"))
        )
        return Entry(guard, with_inputs(view.locals["k"]))

    for recursive in (False, True):
        owner = Owner(callback, recursive=recursive)
        hook.enable(original.__code__, owner)
        token = object()
        before = None
        for index in range(50):
            k = index % 2
            assert call_with_owner(owner, original, token, 1, 2, k=k, z=3) == ((token, k, token), k)
            if index == 10:
                before = sys.getrefcount(token)
        assert sys.getrefcount(token) == before


def test_inputs_when_the_replacement_has_to_be_called() -> None:
    """Where the frame cannot grow the replacement is called, and finds its inputs all the same."""
    space: dict[str, Any] = {}
    many = ", ".join(f"v{i}" for i in range(200))
    exec(f"def small(n, go):\n    return None\ndef large(n, go):\n    {many} = range(200)\n    return go(n)", space)
    large = space["large"].__code__
    from bytecode import Bytecode, Instr

    listing = Bytecode.from_code(large)
    end = next(i for i, item in enumerate(listing) if isinstance(item, Instr) and item.name == "RETURN_VALUE")
    listing[end:end] = [Instr("LOAD_FAST", INPUTS), Instr("BUILD_TUPLE", 2)]
    code = listing.to_code()

    def callback(view: FrameView) -> Entry | None:
        if view.code is not space["small"].__code__:
            return None
        return Entry(compile_guards([], view, inputs=(Local("n"),)), code)

    owner = Owner(callback, recursive=True)
    hook.enable(space["small"].__code__, owner)

    def go(n: int) -> Any:
        return None if n == 0 else space["small"](n - 1, go)

    result = call_with_owner(owner, space["small"], 150, go)
    depths = []
    while result is not None:
        result, (n,) = result
        depths.append(n)
    assert depths == list(range(150, -1, -1))
    assert owner.called > 0


def test_inputs_need_a_guard_program() -> None:
    owner = Owner(lambda view: Entry(None, with_inputs(1)))
    hook.enable(original.__code__, owner)
    with pytest.raises(ValueError, match="without a GuardProgram"):
        call_with_owner(owner, original, 1, k=2)


# ---- what is refused -----------------------------------------------------------------------


def test_uninitialised_objects_are_refused() -> None:
    def function():
        return 1

    with pytest.raises(TypeError, match="Owner was not initialised"):
        hook.enable(function.__code__, Owner.__new__(Owner))
    owner = Owner(lambda view: Entry.__new__(Entry))
    hook.enable(function.__code__, owner)
    with pytest.raises(TypeError, match="Entry was not initialised"):
        call_with_owner(owner, function)
    entry = Entry(None, function.__code__)
    with pytest.raises(TypeError, match="cannot be initialised again"):
        entry.__init__(None, function.__code__)


def test_a_second_import_gives_the_same_module() -> None:
    spec = importlib.util.find_spec("bytecap._evalframe")
    again = importlib.util.module_from_spec(spec)
    assert again.Owner is _evalframe.Owner


def test_other_interpreters_are_refused() -> None:
    script = f"""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import importlib.util
code = '''
import importlib.util
spec = importlib.util.spec_from_file_location("bytecap._evalframe", {_evalframe.__file__!r})
try:
    importlib.util.module_from_spec(spec)
except ImportError as error:
    assert "main interpreter" in str(error) or "subinterpreters" in str(error), error
else:
    raise SystemError("loaded")
'''
one = interpreters.create()
failure = interpreters.run_string(one, code)
assert failure is None, failure
interpreters.destroy(one)
print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "refused", done.stderr


# ---- tracing -------------------------------------------------------------------------------


def test_profile_and_trace_functions_stay_usable() -> None:
    function = new_function(1)
    compiled = optimize(function, EAGER)
    x = torch.ones(2)
    events: list[str] = []

    def note(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_name == "made":
            events.append(event)
        return note

    for install in (sys.setprofile, sys.settrace):
        before = (install is sys.setprofile and sys.getprofile()) or sys.gettrace()
        install(note)
        try:
            assert compiled(x).tolist() == [3.0, 3.0]
            assert compiled(x, 5).tolist() == [6.0, 6.0]
        finally:
            install(before)
    assert events.count("call") >= 4
    assert compiled(x).tolist() == [3.0, 3.0]


def test_deep_recursion_inside_captured_code_raises_recursion_error() -> None:
    def down(n):
        return down(n + 1)

    def function(x):
        return x * 2, down(0)

    compiled = optimize(function, EAGER, on_event=lambda event: None)
    for _ in range(3):
        with pytest.raises(RecursionError):
            compiled(torch.ones(1))
    assert not hook.hook_installed()
