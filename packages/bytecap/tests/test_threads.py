"""Threads that share a compiled function: they do not wait for each other, and every result is eager's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch.utils import _python_dispatch

from absint import AbstractMode
from bytecap import executor, optimize, reset
from bytecap.breaks.points import Resumption

ROUNDS = int(os.environ.get("THREAD_ROUNDS", "3"))
X = torch.ones(3)
WAIT = 60.0


@pytest.mark.parametrize("program", ["lock", "crowd"])
def test_many_threads(program):
    """In a process of its own, which says where its threads are if it hangs."""
    command = [sys.executable, "-m", "bytecap.testing.threads", program, str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 120 * ROUNDS)
    assert (done.returncode, done.stdout) == (0, f"{program}: {ROUNDS} rounds\n"), done.stderr[-4000:]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_what_runs_in_a_capture_may_wait_for_a_thread_that_calls():
    """The backend takes a lock of the program, which another thread holds while it calls the same function."""
    guard, compiling, called = threading.Lock(), threading.Event(), threading.Event()

    def backend(capture, inputs):
        compiling.set()
        assert called.wait(WAIT)
        with guard:
            return executor(capture)

    call = optimize(lambda x: x + 1, backend)

    def holder():
        assert compiling.wait(WAIT)
        with guard:
            called.set()
            results.append(call(X))

    results: list[torch.Tensor] = []
    thread = in_thread(holder)
    assert torch.equal(call(X), X + 1)
    thread.join(WAIT)
    assert torch.equal(results[0], X + 1)


def test_a_thread_runs_plain_what_another_one_captures_and_reset_drops_it():
    compiling, go_on = threading.Event(), threading.Event()
    captures = []

    def inner(x):
        return x * 2

    def backend(capture, inputs):
        captures.append(capture.code.name)
        compiling.set()
        assert go_on.wait(WAIT)
        return executor(capture)

    call = optimize(lambda x: inner(x) + 1, backend)
    thread = in_thread(lambda: call(X))
    assert compiling.wait(WAIT)
    assert torch.equal(call(X), X * 2 + 1)
    assert len(captures) == 1  # what it calls is not captured by itself meanwhile
    reset()
    go_on.set()
    thread.join(WAIT)
    for _ in range(2):
        assert torch.equal(call(X), X * 2 + 1)
    assert len(captures) == 2  # what was made before the reset serves no call after it


def test_a_reset_by_the_backend_drops_what_it_makes():
    captures = []

    def backend(capture, inputs):
        captures.append(capture.code.name)
        if len(captures) == 1:
            reset()
        return executor(capture)

    call = optimize(lambda x: x + 1, backend, fullgraph=True)
    for _ in range(3):
        assert torch.equal(call(X), X + 1)
    assert len(captures) == 2


def test_drivers_of_one_plan_are_the_newest():
    """Points that threads add while others make drivers: no driver is older than the plan when it is asked for."""

    def program(x):
        while x < 100:
            x = x + 1
            x = x * 2
            x = x - 3
        return x

    resumption = Resumption(program.__code__)
    places = [index for index in range(resumption.start, 200) if _can_enter(resumption, index)]
    faults = []

    def add(first: int) -> None:
        for index in places[first::2]:
            point = resumption.target(index)
            if resumption.target(index) is not point:
                faults.append(index)
            resumption.driver_code  # noqa: B018

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [in_thread(lambda first=first: add(first)) for first in (0, 1, 0, 1)]
        for thread in threads:
            thread.join(WAIT)
    finally:
        sys.setswitchinterval(before)
    assert not faults
    assert sorted(resumption.plan.targets) == places
    points = {id(value) for value in resumption.driver_code.co_consts}
    assert all(id(point) in points for point in resumption.plan.targets.values())


def _can_enter(resumption: Resumption, index: int) -> bool:
    return index < len(resumption.flow.program.instructions) and resumption.can_enter(index)


def test_modes_of_several_threads_leave_no_notes():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with AbstractMode():
            entered.set()
            assert leave.wait(WAIT)

    with AbstractMode():
        thread = in_thread(other)
        assert entered.wait(WAIT)
    leave.set()
    thread.join(WAIT)
    assert not _python_dispatch.is_in_torch_dispatch_mode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_captures_what_a_thread_of_its_parent_was_capturing():
    compiling, go_on, parent = threading.Event(), threading.Event(), os.getpid()
    captures = []

    def backend(capture, inputs):
        captures.append(capture)
        if os.getpid() == parent:
            compiling.set()
            assert go_on.wait(WAIT)
        return executor(capture)

    call = optimize(lambda x: x + 1, backend)
    thread = in_thread(lambda: call(X))
    assert compiling.wait(WAIT)
    child = os.fork()
    if not child:
        result = call(X)
        os._exit(0 if torch.equal(result, X + 1) and len(captures) == 2 else 1)
    go_on.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join(WAIT)
