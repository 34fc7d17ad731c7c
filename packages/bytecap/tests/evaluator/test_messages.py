"""Warnings and messages of logging of captured code: which, how often, and from which line."""

# ruff: noqa: B028

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bytecap import Broke, Captured, executor, optimize


def warns(text: str, level: int) -> None:
    warnings.warn(text, stacklevel=level)


def at_each_level(x):
    warnings.warn("here")
    x = x + 1
    for level in (0, 1, 2, 3, 4):
        warns("deeper", level)
    warnings.warn("old", DeprecationWarning, stacklevel=2)
    return x


class Odd(UserWarning):
    """A class of warnings of the program's own."""


def with_instances(x):
    warnings.warn(Odd("an instance", 3))
    warnings.warn(message="a class", category=Odd, stacklevel=1)
    return x + 1


def in_comprehensions(x):
    return [(warnings.warn("item", stacklevel=level), x * level)[1] for level in (1, 2, 3)]


def behind_breaks(x):
    if bool((x > 0).all()):
        x = x + 1
    warns("own line", 2)
    warns("line of the caller", 3)
    return x * 2


def of_torch(x):
    """Functions that are one node each where they do not warn."""
    row, image = x[:1], x[None, None]
    losses = F.mse_loss(x, row), F.l1_loss(x, row), F.huber_loss(x, row), F.smooth_l1_loss(x, row), F.kl_div(x, x)
    return F.softmax(x) + F.log_softmax(x), losses, F.upsample(image, scale_factor=2), F.dropout2d(x, 0.5)


def pieces(x):
    warns("first", 3)
    yield x + 1
    warns("second", 3)
    yield x + 2


def drawn(x):
    return list(pieces(x))


def caught(function: Callable[..., Any]) -> list[tuple[str, str, str, int]]:
    """What two calls warn of, and where."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            function(torch.ones(2, 2))
    return [(str(one.message), one.category.__name__, one.filename, one.lineno) for one in found]


def ran(program: Callable[..., Any], compiled: bool) -> tuple[list[tuple[str, str, str, int]], list[Any]]:
    events: list[Any] = []
    run = optimize(program, lambda capture, inputs: executor(capture), on_event=events.append) if compiled else program
    return caught(run), events


@pytest.mark.parametrize("program", [at_each_level, with_instances, in_comprehensions, behind_breaks, of_torch])
def test_warnings_are_those_of_plain_code_with_their_lines(program) -> None:
    """All were from one line of the compiler; those of torch came once, while the code was captured."""
    made, events = ran(program, compiled=True)
    expected, _ = ran(program, compiled=False)
    assert made == expected
    assert any(isinstance(event, Captured) for event in events)
    assert any(isinstance(event, Broke) for event in events) == (program is behind_breaks)


LOG = logging.getLogger(__name__)


def logs_from_below() -> None:
    LOG.warning("own line")
    LOG.info("line of %s", "the caller", stacklevel=2)
    LOG.info("line of its caller", stacklevel=3)


def logs(x):
    LOG.log(25, "first %d", 1)
    x = x + 1
    logs_from_below()
    try:
        {}["missing"]
    except KeyError:
        LOG.exception("with the exception")
        LOG.error("with it too", exc_info=True)
        LOG.error("without")
    LOG.exception("none is handled")
    return x


def test_messages_of_logging_say_the_line_and_the_exception_of_plain_code(caplog) -> None:
    """All were of a function of the compiler, and without the exception."""

    def written(function: Callable[..., Any]) -> list[Any]:
        caplog.clear()
        with caplog.at_level(logging.INFO, __name__):
            for _ in range(2):
                function(torch.ones(2))
        return [
            (
                one.getMessage(),
                one.levelno,
                one.pathname,
                one.lineno,
                one.funcName,
                repr(one.exc_info and one.exc_info[1]),
            )
            for one in caplog.records
            if one.name == __name__
        ]

    events: list[Any] = []
    compiled = optimize(logs, lambda capture, inputs: executor(capture), on_event=events.append)
    assert written(compiled) == written(logs)
    assert [type(event) for event in events] == [Captured]


def test_a_generator_warns_from_the_line_that_asks_it() -> None:
    compiled = optimize(pieces, lambda capture, inputs: executor(capture))
    for_plain, for_compiled = (
        caught(lambda x, function=function: list(function(x))) for function in (pieces, compiled)
    )
    assert for_compiled == for_plain


def test_filters_see_the_module_that_warns_and_count_its_lines() -> None:
    def again(x):
        warnings.warn("of this module")
        return x + 1

    run = optimize(again, lambda capture, inputs: executor(capture))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            run(torch.ones(2))
    assert len(found) == 1
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=__name__)
        run(torch.ones(2))
    assert not found


def test_a_warning_of_torch_that_a_filter_makes_an_error_is_raised() -> None:
    """It was a fault of the evaluator: the program got a CaptureWarning in its place."""
    run = optimize(lambda x: F.softmax(x) + 1, lambda capture, inputs: executor(capture))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="Implicit dimension choice for softmax"):
                run(torch.ones(2))


def with_handlers(x, log):
    log.append("before")
    try:
        warnings.warn("is caught", DeprecationWarning)
    except DeprecationWarning:
        x = x + 1
    x.add_(1)
    warnings.warn("leaves the call")
    log.append("behind")
    return x.add_(10)


@pytest.mark.parametrize("actions", [("ignore", "error", "ignore", "always", "error"), ("error", "ignore")])
def test_a_warning_that_a_filter_makes_an_error_is_raised_where_it_stands(actions) -> None:
    """It was raised behind the graph and all other effects: no handler saw it, and what stands behind it had run."""

    def outcome(call: Callable[..., Any], action: str) -> Any:
        x, log = torch.zeros(2), []
        with warnings.catch_warnings(record=True):
            warnings.simplefilter(action)
            try:
                return call(x, log).tolist(), x.tolist(), log
            except UserWarning as error:
                return str(error), x.tolist(), log

    run = optimize(with_handlers, lambda capture, inputs: executor(capture))
    for action in actions:
        assert outcome(run, action) == outcome(with_handlers, action)


def test_a_filter_set_inside_is_put_back_where_its_warning_is_raised() -> None:
    def program(x):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.warn("raised inside")
        return x

    run, before = optimize(program, lambda capture, inputs: executor(capture)), list(warnings.filters)
    with pytest.raises(UserWarning, match="raised inside"):
        run(torch.ones(2))
    assert warnings.filters == before
