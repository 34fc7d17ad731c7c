"""Torch calls that raise because of their data, when a graph runs: handlers, effects and tracebacks are eager's."""

from __future__ import annotations

import contextlib

import pytest
import torch

from bytecap import Captured, executor, optimize
from bytecap.testing.changes import check_arguments
from bytecap.testing.programs import Programs

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


def test_without_handlers_and_effects_the_graph_raises_itself():
    def failing(capture, inputs):
        def run(*tensors):
            raise ValueError("of the backend")

        return run

    with pytest.raises(ValueError, match="of the backend"):
        optimize(lambda x: x + 1, failing)(values())


def test_one_capture_serves_both():
    events = []
    call = optimize(caught, lambda capture, inputs: executor(capture), on_event=events.append, fullgraph=True)
    for index in (1, 7, 2, 9):
        call(values(), torch.tensor(index), [])
    assert len([event for event in events if isinstance(event, Captured)]) == 1
