"""Generators: send, throw, close, `yield from`, what they handle, and those that leave the frame."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

from bytecap.testing import Programs

PROGRAMS = Programs()
NET = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))


def vector():
    return torch.arange(3.0)


def squares(n):
    for index in range(n):
        yield index * index


@PROGRAMS.add(vector)
def sent_values(x):
    def talk():
        got = yield 1
        while got != "stop":
            got = yield got * 2
        return "done"

    talking = talk()
    first = next(talking), talking.send(x)
    try:
        talking.send("stop")
    except StopIteration as stop:
        return first, stop.value, list(talking)


@PROGRAMS.add(vector)
def thrown_exceptions(x):
    def hold():
        while True:
            try:
                yield 1
            except ValueError as error:
                yield ("caught", error.args)

    holding = hold()
    next(holding)
    unstarted = hold()
    try:
        unstarted.throw(KeyError("k"))
    except KeyError as error:
        return holding.throw(ValueError(3)), next(holding), error.args, list(unstarted), x + 1


@PROGRAMS.add(vector)
def exceptions_go_through_yield_from(x):
    log = []

    def inner():
        try:
            yield 1
        except ValueError:
            log.append("inner")
            yield 2
        finally:
            log.append("closed")
        return 3

    def outer():
        try:
            got = yield from inner()
            log.append(got)
            yield 4
        except KeyError:
            log.append("outer")
            yield 5

    one, two = outer(), outer()
    next(one)
    found = [one.throw(ValueError()), one.throw(KeyError()), next(two)]
    two.close()
    return found, log, x + 1


@PROGRAMS.add(vector)
def generators_are_left_while_they_delegate(x):
    def delegating():
        yield from range(3)
        yield from squares(4)

    held = delegating()
    first = [next(held) for _ in range(5)]
    found = next(parameter.dtype for parameter in NET.parameters() if parameter.is_floating_point())
    return first, next(NET.parameters()).device, x.to(found)


@PROGRAMS.add(vector, refusal="BC002")
def a_generator_that_cleans_up_is_left_behind_one_that_delegates(x):
    log = []

    def inner():
        try:
            yield 1
        finally:
            log.append("closed")

    def delegating():
        yield from inner()

    held = delegating()
    return next(held), log, x + 1


@PROGRAMS.add(vector)
def refused_uses(x):
    messages = []

    def again():
        try:
            next(running)
        except ValueError as error:
            yield str(error)

    def stubborn():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    running = again()
    messages.append(next(running))
    held = stubborn()
    next(held)
    for attempt in (held.close, lambda: squares(1).send(3), lambda: list(leaks())):
        try:
            attempt()
        except (RuntimeError, TypeError) as error:
            messages.append((str(error), type(error.__cause__).__name__))
    held.close()
    return messages, x + 1


def leaks():
    yield 1
    raise StopIteration(5)


@PROGRAMS.add(vector)
def what_a_generator_handles_is_its_own(x):
    def handling():
        try:
            raise ValueError
        except ValueError:
            yield 1
            yield type(sys.exc_info()[1]).__name__

    held = handling()
    next(held)
    outside = sys.exc_info()[0]
    return outside, next(held), list(held), sys.exc_info()[0], x + 1


@PROGRAMS.add(vector)
def generators_that_have_not_started_leave_the_frame(x):
    def scaled(n, *rest, by=2, **named):
        yield n * by + len(rest) + len(named)

    return squares(3), scaled(x, 1, 2, by=3, z=1), (value * x for value in [1, 2])


@PROGRAMS.add(vector, refusal="BC002")
def a_generator_dropped_amid_its_clean_up(x):
    log = []

    def cleaning():
        try:
            yield 1
        finally:
            log.append("cleaned")

    return next(cleaning()), log, x + 1


@PROGRAMS.add(vector)
def a_generator_dropped_in_a_narrow_try(x):
    def reading():
        try:
            for index in range(5):
                yield index * 2
        except IndexError as error:
            print(error)

    return next(reading()), 4 in reading(), x + 1


@PROGRAMS.add(vector)
def context_managers_made_of_local_generators(x):
    log = []

    @contextlib.contextmanager
    def noted(text):
        log.append(text)
        try:
            yield x * 2
        except ValueError as error:
            log.append(str(error))
        finally:
            log.append("left")

    with noted("one") as doubled, noted("two"):
        raise ValueError("inside")
    with contextlib.ExitStack() as stack:
        stack.enter_context(noted("three"))
        stack.callback(log.append, "callback")
    return doubled, log


@PROGRAMS.add(vector)
def unpacking_reads_no_more_than_it_needs(x):
    log = []

    def noted():
        for index in range(10):
            log.append(index)
            yield index

    try:
        first, second = noted()
    except ValueError as error:
        return str(error), log, x + 1
    return first, second


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
