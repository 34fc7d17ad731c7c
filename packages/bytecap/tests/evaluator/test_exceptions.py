"""Exceptions as objects: causes, contexts, notes, fields of C classes, and the way back out of the frame."""

from __future__ import annotations

import sys

import pytest
import torch

from bytecap.testing import Programs

PROGRAMS = Programs()


def vector():
    return torch.arange(3.0)


def described(error):
    if error is None:
        return None
    links = described(error.__cause__), described(error.__context__), error.__suppress_context__
    return type(error).__name__, error.args, str(error), *links


class Coded(Exception):
    def __init__(self, code, *, info=None):
        super().__init__(f"code {code}")
        self.code = code
        self.info = info


class Tagged(Exception):
    def __new__(cls, *args, **named):
        made = super().__new__(cls, *args)
        made.tag = len(args)
        return made

    def __init__(self, *args, extra=0):
        self.extra = extra


@PROGRAMS.add(vector)
def causes_and_contexts(x):
    found = []
    for cause in (KeyError("c"), KeyError, None, 5):
        try:
            try:
                raise IndexError("first")
            except IndexError:
                raise ValueError("second") from cause
        except (ValueError, TypeError) as error:
            found.append(described(error))
    try:
        try:
            {}["k"]
        finally:
            [][3]
    except IndexError as error:
        found.append(described(error))
    return found, x + 1


@PROGRAMS.add(vector)
def exceptions_leave_the_frame(x):
    try:
        try:
            raise KeyError("k")
        except KeyError as first:
            raise Coded(3, info=x) from first
    except Coded as error:
        error.add_note("seen")
        return error, Tagged(1, 2, extra=x), ValueError("plain", 2)


@PROGRAMS.add(vector)
def what_is_handled(x):
    log = []
    try:
        raise KeyError(1)
    except KeyError:
        try:
            raise ValueError(2)
        except ValueError:
            log.append(sys.exc_info()[0])
        log.append(sys.exc_info()[0])
        try:
            raise
        except KeyError as error:
            log.append(error.args)
    log.append(sys.exc_info())
    return log, x + 1


@PROGRAMS.add(vector)
def fields_of_builtin_exceptions(x):
    found = []
    for attempt in (lambda: (5).foo, lambda: missing_name, lambda: Coded(1).nothing, lambda: torch.nothing):  # noqa: F821
        try:
            attempt()
        except (AttributeError, NameError) as error:
            found.append((str(error), error.name))
    try:
        raise OSError(2, "no file", "f.txt")
    except OSError as error:
        found.append((type(error).__name__, error.errno, error.filename, error.args, str(error)))
    try:
        "é".encode("ascii")
    except UnicodeEncodeError as error:
        found.append((error.start, error.reason))
    return found, SystemExit(3).code, StopIteration(4).value, x + 1


@PROGRAMS.add(vector)
def exceptions_are_changed(x):
    error = ValueError(1)
    error.args = (2, 3)
    error.__cause__ = KeyError("k")
    return described(error), error == ValueError(2, 3), error in [error], error.__traceback__, x + 1


@PROGRAMS.add(vector)
def what_cannot_be_raised_caught_or_entered(x):
    messages = []

    number = x.dim() + 4

    def catch_number():
        try:
            raise ValueError
        except number:
            pass

    def raise_number():
        raise number

    def enter_number():
        with 5:
            pass

    for attempt in (catch_number, raise_number, enter_number, lambda: ValueError(a=1)):
        try:
            attempt()
        except TypeError as error:
            messages.append(str(error))
    return messages, x + 1


@PROGRAMS.add(vector)
def wrong_arguments(x):
    def few(a, b=2, /, c=3, *, e):
        return a, b, c, e

    messages = []
    attempts = (
        lambda: few(), lambda: few(1, 2, 3, 4, e=1), lambda: few(a=1, e=2), lambda: few(1, e=1, zz=2),
        lambda: few(1, c=2, e=1, **{"c": 3}), lambda: few(*5), lambda: few(**5), lambda: len(), lambda: len([], []),
        lambda: sorted(), lambda: isinstance(1), lambda: list(1, 2), lambda: print(1, foo=2), lambda: iter(),
    )  # fmt: skip
    for attempt in attempts:
        try:
            attempt()
        except TypeError as error:
            messages.append(str(error))
    return messages, x + 1


@PROGRAMS.add(vector)
def operators_that_do_not_fit(x):
    class_of = type(described)
    messages = []
    attempts = (
        lambda: [1] + (2,), lambda: "a" + 1, lambda: {} < {}, lambda: Coded(1) - Coded(2), lambda: Coded(1) <= 3,
        lambda: -"a", lambda: [1] * 1.5, lambda: {1} | [2], lambda: [1][x.dtype], lambda: (1,)[type(x)],
        lambda: [1, 2][::0],
    )  # fmt: skip
    for attempt in attempts:
        try:
            attempt()
        except (TypeError, ValueError) as error:
            messages.append(str(error))
    return messages, class_of is type(vector), x + 1


PARAMETER = torch.nn.Parameter(torch.ones(2))


@PROGRAMS.add(vector)
def what_a_tensor_lacks(x):
    found = []
    for tensor in (x, x + 1, PARAMETER):
        try:
            found.append(tensor.missing)
        except AttributeError as error:
            found += [str(error), error.name, error.obj is tensor]
    return found, x + 1


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
