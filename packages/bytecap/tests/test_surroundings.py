"""Compiled callables amid debuggers, profilers, coverage, generators, recursion, forks and other threads."""

from __future__ import annotations

import bdb
import contextlib
import copy
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.data import DataLoader, Dataset

from absint import AbstractMode
from bytecap import executor, hook, optimize

X = torch.arange(3.0)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return optimize(function, lambda capture, inputs: executor(capture), on_event=lambda event: None)


def work(x, n=2):
    y = torch.relu(x) * n
    if n > 2:
        y = y + 1
    return y


# ---- tracing --------------------------------------------------------------------------------


@contextlib.contextmanager
def tracing(install: Callable[[Any], None], function: Any) -> Iterator[None]:
    install(function)
    try:
        yield
    finally:
        install(None)


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile], ids=["trace", "profile"])
def test_installed_before_the_first_call_and_after(install: Callable[[Any], None]) -> None:
    for first in (True, False):
        call, seen = compiled(work), []

        def watch(frame, event, arg, seen=seen):
            seen.append((frame.f_code.co_name, event))
            return watch if install is sys.settrace else None

        if not first:
            call(X)
        with tracing(install, watch):
            for n in (2, 3, 2):
                assert torch.equal(call(X, n), work(X, n))
        assert ("work", "call") in seen
        assert ("work", "return") in seen
        assert torch.equal(call(X, 3), work(X, 3))


def test_under_a_debugger() -> None:
    lines: list[str] = []

    class Stepper(bdb.Bdb):
        def user_line(self, frame: Any) -> None:
            lines.append(frame.f_code.co_name)
            self.set_step()

    call = compiled(work)
    call(X)
    stepper = Stepper()
    result: list[torch.Tensor] = []
    stepper.runcall(lambda: result.append(call(X)))
    assert torch.equal(result[0], work(X))
    assert "work" in lines


def test_a_tracer_that_raises_leaves_the_callable_whole() -> None:
    call = compiled(work)
    call(X)

    def fail(frame, event, arg):
        if frame.f_code.co_name == "work":
            raise KeyError("tracer")
        return fail

    with pytest.raises(KeyError), tracing(sys.settrace, fail):
        call(X)
    sys.settrace(None)
    assert torch.equal(call(X), work(X))


def test_coverage_sees_the_callers_lines(tmp_path: Any) -> None:
    pytest.importorskip("coverage")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import torch
            from bytecap import executor, optimize

            def f(x):
                y = x * 2
                return y + 1

            call = optimize(f, lambda capture, inputs: executor(capture))
            for _ in range(3):
                assert torch.equal(call(torch.ones(2)), torch.full((2,), 3.0))
            print("done")
        """)
    )
    command = [sys.executable, "-m", "coverage", "run", f"--data-file={tmp_path}/data", str(script)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "done\n"


# ---- generators and recursion ---------------------------------------------------------------


def test_called_from_a_generator_that_is_suspended() -> None:
    call = compiled(work)

    def numbers():
        for n in range(4):
            yield call(X, n)

    first, second = numbers(), numbers()
    pairs = [(next(first), next(second)) for _ in range(4)]
    assert all(torch.equal(a, work(X, n)) and torch.equal(b, work(X, n)) for n, (a, b) in enumerate(pairs))


def test_a_generator_of_the_caller_runs_inside() -> None:
    def total(values):
        result = 0
        for value in values:
            result = result + value * 2
        return result

    call = compiled(total)
    assert torch.equal(call(x for x in (X, X)), X * 4)
    assert torch.equal(call(x for x in (X, X, X)), X * 6)


def test_recursion_through_the_compiled_callable() -> None:
    def power(x, n):
        return x if n == 0 else call(x, n - 1) * 2

    call = optimize(power, lambda capture, inputs: executor(capture), recompile_limit=20, on_event=lambda event: None)
    for n in (0, 3, 6, 3):
        assert torch.equal(call(X, n), X * 2**n)


def test_a_callable_that_calls_itself_while_it_is_captured() -> None:
    calls: list[int] = []

    def backend(capture, inputs):
        calls.append(len(calls))
        if len(calls) < 3:
            assert torch.equal(call(X, len(calls) + 5), X * (len(calls) + 5))
        return executor(capture)

    call = optimize(lambda x, n: x * n, backend, on_event=lambda event: None)
    assert torch.equal(call(X, 2), X * 2)


# ---- threads --------------------------------------------------------------------------------


def test_many_threads_modules_and_versions() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.Linear(3, 3)) for _ in range(3)]
    run = compiled(lambda model, x, n: model(x) * n)
    faults: list[str] = []

    def worker(seed: int) -> None:
        for turn in range(60):
            model, n = models[(seed + turn) % 3], 1 + (seed * turn) % 3
            expected = model(X) * n
            if not torch.equal(run(model, X, n), expected):
                faults.append(f"{seed} {turn}")

    threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert not hook.hook_installed()


# ---- processes ------------------------------------------------------------------------------

shared = compiled(work)


def in_child(pipe: Any) -> None:
    first = shared(X, 2)
    second = shared(X, 5)
    third = compiled(lambda x: x - 1)(X)
    pipe.send([tensor.tolist() for tensor in (first, second, third)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork() -> None:
    shared(X, 2)
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(theirs,))
    child.start()
    assert mine.poll(60)
    assert mine.recv() == [work(X, 2).tolist(), work(X, 5).tolist(), (X - 1).tolist()]
    child.join(60)
    assert child.exitcode == 0
    assert torch.equal(shared(X, 5), work(X, 5))


class Rows(Dataset):
    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.call(X, index)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_the_workers_of_a_data_loader() -> None:
    shared(X, 2)
    for workers in (0, 2):
        rows = torch.cat(list(DataLoader(Rows(shared), batch_size=2, num_workers=workers)))
        assert torch.equal(rows, torch.stack([work(X, n) for n in range(6)]))


# ---- copies ---------------------------------------------------------------------------------


def doubled(x):
    return x * 2


doubled = compiled(doubled)


def test_copies_and_pickles_are_those_of_functions() -> None:
    assert copy.deepcopy({"f": doubled})["f"] is doubled
    assert copy.copy(doubled) is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled


# ---- the end of the process -----------------------------------------------------------------


AT_THE_END = """
import gc, torch
from bytecap import executor, optimize

class Last:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print(optimize(lambda x: x + 1, lambda capture, inputs: executor(capture))(torch.ones(2)).tolist())

gc.disable()
Last()
"""


def test_nothing_is_captured_when_python_shuts_down() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", AT_THE_END], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2.0, 2.0]\n", "")


# ---- interrupts -----------------------------------------------------------------------------


def test_an_interrupt_in_the_midst_of_a_capture_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any point of the way out of a dispatch mode."""
    leave, noted = AbstractMode.__exit__, _python_dispatch._is_in_torch_dispatch_mode
    for moment in ("before", "after"):

        def interrupted(mode, *error, moment=moment):
            if moment == "after":
                leave(mode, *error)
            raise KeyboardInterrupt

        call = compiled(work)
        with monkeypatch.context() as patch:
            patch.setattr(AbstractMode, "__exit__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call(X)
        assert torch._C._len_torch_dispatch_stack() == 0
        assert noted == _python_dispatch._is_in_torch_dispatch_mode
        assert gc.isenabled()
        assert torch.equal(call(X), work(X))


def test_an_interrupt_in_captured_code_is_raised() -> None:
    def interrupts(x):
        y = x * 2
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            y = y + 1
        return y

    call = compiled(interrupts)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background ignore it
    try:
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                call(X)
    finally:
        signal.signal(signal.SIGINT, before)
    assert torch.equal(compiled(lambda x: x + 1)(X), X + 1)
