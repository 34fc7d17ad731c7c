"""Torch calls that raise because of their data, when a graph runs: handlers, effects and tracebacks are eager's."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch

from bytecap import Captured, CaptureWarning, executor, optimize
from bytecap.driver import undo
from bytecap.errors import InterpretError
from bytecap.testing.changes import check_arguments
from bytecap.testing.programs import Programs
from stagewire.errors import PartlyDone

PROGRAMS = Programs()


def values():
    return torch.ones(3)


def far():
    return torch.tensor(7)


def indefinite():
    return torch.tensor([[1.0, 2.0], [2.0, 1.0]])


@PROGRAMS.add(values, far, list)
def effects_come_before(x, index, log):
    log.append(1)
    y = x[index]
    log.append(2)
    return y


@PROGRAMS.add(values, far, list)
def caught(x, index, log):
    try:
        return x[index] + 1
    except IndexError as error:
        log.append(type(error).__name__)
        return x + 5


@PROGRAMS.add(values, far, list)
def one_instruction_in_try(x, index, log):
    try:
        y = x[index]
    except IndexError:
        log.append("caught")
        return x + 5
    return y


@PROGRAMS.add(indefinite)
def caught_and_tried_again(x):
    for attempt in range(3):
        try:
            return torch.linalg.cholesky(x + attempt * torch.eye(2)), attempt
        except RuntimeError:
            continue
    return x, None


@PROGRAMS.add(values, far, dict)
def in_finally(x, index, state):
    state["before"] = 1
    try:
        return torch.gather(x, 0, index[None])
    finally:
        state["after"] = 2


@PROGRAMS.add(values, far, list)
def in_a_callee(x, index, log):
    def read(row):
        return row.index_select(0, index[None])

    with contextlib.suppress(IndexError, RuntimeError):
        log.append(read(x))
    return x * 2


@PROGRAMS.add(values, far, list)
def nothing_is_handled_afterwards(x, index, log):
    try:
        log.append(x[index])
    except IndexError as error:
        log.append(error.__context__)
    try:
        raise KeyError(1)
    except KeyError as error:
        return x + 1, error.__context__


@PROGRAMS.add(values, far, list)
def inputs_are_written(x, index, log):
    x.add_(1)
    log.append(x.clone())
    return x[index]


@PROGRAMS.add(values, far)
def written_and_caught(x, index):
    x.mul_(2)
    try:
        x.add_(1)
        y = x[index]
    except IndexError:
        y = x.sub_(5)
    return y


@PROGRAMS.add(values, far, list, refusal="BC004")
def behind_a_break(x, index, log):
    x.add_(1)
    log.append("first")
    if x.sum() > 100:
        return x
    x.add_(1)
    log.append("second")
    return x[index]


@PROGRAMS.add(values, far, list, refusal="BC004")
def in_a_block_behind_a_break(x, index, log):
    with contextlib.suppress(IndexError):
        try:
            if x.sum() > 100:
                return x
            x.add_(1)
            return x[index]
        finally:
            log.append(x.clone())
            x.mul_(3)
    return x - 1


@PROGRAMS.add(values, far, refusal="BC004")
def in_a_loop_with_breaks(x, index):
    found = []
    for number in range(4):
        try:
            if x.sum() > 100:
                continue
            x.add_(number)
            found.append(x[index - 3 - number])
        except IndexError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


@pytest.mark.parametrize("program", [caught, effects_come_before, in_finally], ids=lambda program: program.__name__)
def test_calls_that_raise_and_that_do_not(program):
    kind = dict if program is in_finally else list
    check_arguments(program, lambda: (values(), torch.tensor(1), kind()), lambda: (values(), far(), kind()))


def test_an_interrupt_is_not_caught():
    def interrupting(capture, inputs):
        def run(*tensors):
            raise KeyboardInterrupt

        return run

    with pytest.raises(KeyboardInterrupt):
        optimize(caught, interrupting)(values(), far(), [])


def failing(capture, inputs):
    """A backend whose graphs run, and raise afterwards."""
    run = executor(capture)

    def call(*tensors):
        run(*tensors)
        raise ValueError("of the backend")

    return call


def test_where_only_the_graph_raises_the_plain_result_is_used(caplog):
    caplog.set_level("INFO", "bytecap")

    def program(x, log):
        log.append(x.add_(1))
        return x * torch.rand(3)

    torch.manual_seed(0)
    x, log = values(), []
    found = optimize(program, failing)(x, log)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert found.equal(2 * torch.rand(3))
    assert after.equal(torch.rand(1)), "what the graph drew is given back"
    assert x.tolist() == [2.0] * 3
    assert x._version == 1
    assert len(log) == 1
    assert "ValueError: of the backend" in caplog.text


def test_an_atomic_backend_is_given_no_copies(monkeypatch):
    def atomic(capture, inputs):
        run = executor(capture)

        def call(*tensors):
            return run(*tensors)

        call.atomic = True
        return call

    copied = []

    class Noted(undo.Snapshot):
        def __init__(self, written, generators):
            super().__init__(written, generators)
            copied.append((len(self.written), len(self.states)))

    monkeypatch.setattr(undo, "Snapshot", Noted)
    x = values()
    optimize(lambda x: x.add_(1), atomic)(x)
    assert copied == []
    optimize(lambda x: x.add_(1) * torch.rand(3), atomic)(x)
    assert copied == [(0, 1)]
    optimize(lambda x: x.add_(1), failing)(x)
    assert copied == [(0, 1), (1, 0)]
    assert x.tolist() == [4.0] * 3


def test_what_cannot_be_undone_is_not_run_again():
    """A write that autograd saw: the graph's error is the program's."""

    def program(x, log):
        x.mul_(2)
        log.append(1)
        return x + 1

    leaf, log = torch.ones(3, requires_grad=True), []
    x = leaf * 1
    with pytest.raises(ValueError, match="of the backend"):
        optimize(program, failing)(x, log)
    assert x.tolist() == [2.0] * 3
    assert log == []


def test_a_graph_that_is_partly_done_is_not_run_again():
    def partly(capture, inputs):
        def call(x):
            x.add_(1)
            raise PartlyDone(MemoryError("no room"))

        call.atomic = True
        return call

    x = values()
    with pytest.raises(MemoryError, match="no room"):
        optimize(lambda x: x.add_(1), partly)(x)
    assert x.tolist() == [2.0] * 3


def test_a_fault_of_a_stage_is_told():
    def faulty(capture, inputs):
        def call(*tensors):
            raise InterpretError("a fault")

        return call

    with pytest.warns(CaptureWarning, match="InterpretError"):
        assert optimize(lambda x: x + 1, faulty)(values()).tolist() == [2.0] * 3


def test_the_traceback_ends_in_the_users_line():
    def program(x, index):
        x.add_(1)
        return x[index]  # here

    with pytest.raises(IndexError) as caught:
        optimize(program, lambda capture, inputs: executor(capture))(values(), far())
    assert str(caught.traceback[-1].statement).endswith("# here")
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_a_failed_call_holds_nothing():
    def program(x, index):
        return x.add_(1)[index]

    call = optimize(program, lambda capture, inputs: executor(capture))
    x = values()
    with pytest.raises(IndexError):
        call(x, far())
    seen = weakref.ref(x)
    gc.disable()
    try:
        with contextlib.suppress(IndexError):
            call(x, far())
        del x
        assert seen() is None
    finally:
        gc.enable()


def test_one_capture_serves_both():
    events = []
    call = optimize(caught, lambda capture, inputs: executor(capture), on_event=events.append, fullgraph=True)
    for index in (1, 7, 2, 9):
        call(values(), torch.tensor(index), [])
    assert len([event for event in events if isinstance(event, Captured)]) == 1
