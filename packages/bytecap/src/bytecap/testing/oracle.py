"""Run a program plain and captured, from equal arguments, and compare everything that a user can see."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from bytecap.driver.executor import executor
from bytecap.driver.optimize import optimize
from bytecap.driver.stage import Options
from bytecap.events import Broke, Captured, Event, Refused
from bytecap.guards.process_state import TorchModes, torch_modes
from bytecap.hook import FrameView
from bytecap.testing.comparison import differences
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.verify import verify

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What one call did: its result or exception, its arguments as it left them, what it printed and warned.

    lines: the traceback of the exception, as (function, line). modes: torch's. handled: an exception that is still
    being handled after the call.
    """

    result: Any
    error: BaseException | None
    lines: tuple[tuple[str, int], ...]
    arguments: Arguments
    printed: str
    warned: tuple[str, ...]
    modes: TorchModes
    handled: BaseException | None


@dataclass(frozen=True)
class Report:
    """What the captured runs said: events in order, documents given to the backend."""

    events: tuple[Event, ...]
    captures: tuple[Capture, ...]

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the breaks and refusals."""
        return tuple(event.error.code for event in self.events if isinstance(event, Broke | Refused))


def frame_view(function: FunctionType, arguments: dict[str, Any]) -> FrameView:
    """What a callback would see of a call of `function` with these arguments by name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return FrameView((function.__code__, function, function.__globals__, function.__builtins__, arguments, cells))


def observe(function: Callable[..., Any], arguments: Arguments) -> Outcome:
    """Call and note everything."""
    text, result, failure = io.StringIO(), None, None
    args, kwargs = arguments
    with contextlib.redirect_stdout(text), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            failure = error
    modes, handled = torch_modes(), sys.exception()
    warned = tuple(str(item.message) for item in caught)
    return Outcome(result, failure, _lines(failure), arguments, text.getvalue(), warned, modes, handled)


def _lines(error: BaseException | None) -> tuple[tuple[str, int], ...]:
    """Where an exception went through, without the call that caught it."""
    rows = traceback.extract_tb(None if error is None else error.__traceback__)
    return tuple((row.name, row.lineno or 0) for row in rows[1:])


def check(
    make: Callable[[], tuple[Callable[..., Any], Arguments]],
    *,
    whole: bool = True,
    calls: int = 2,
    seed: int = 7,
    use: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
) -> Report:
    """Assert that captured calls behave as plain ones; returns what was captured.

    make: gives the function and its arguments, new ones at every call, so that no run sees another's changes.
    whole: also assert that every call was captured in one graph and that the second made no new capture. calls:
    captured calls to make, each on new arguments and compared. use: what is called instead of a function: it calls it.

    A difference raises AssertionError with its place.
    """
    events: list[Event] = []
    captures: list[Capture] = []

    def backend(capture: Capture, example_inputs: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
        verify(capture)
        assert len(example_inputs) == len(capture.inputs)
        assert decode(encode(capture)) == capture
        captures.append(capture)
        return executor(capture)

    function, _ = make()
    optimized = optimize(function, backend, on_event=events.append, options=Options(allow_empty=True))
    for number in range(calls):
        plain_function, arguments = make()
        torch.manual_seed(seed)
        expected = observe(use(plain_function), arguments)
        _, arguments = make()
        torch.manual_seed(seed)
        got = observe(use(optimized), arguments)
        _compare(expected, got, f"call {number}")
    report = Report(tuple(events), tuple(captures))
    if whole:
        refused = [event.error for event in events if isinstance(event, Broke | Refused)]
        assert not refused, f"not captured: {refused[0]}"
        made = [event for event in events if isinstance(event, Captured)]
        assert len(made) == 1, f"captured {len(made)} times: {[event.reason for event in made]}"
    return report


def _compare(expected: Outcome, got: Outcome, where: str) -> None:
    if got.error is not None and expected.error is None:
        raise AssertionError(f"{where}: the captured run raised") from got.error
    for name in ("error", "lines", "printed", "warned", "modes", "handled"):
        found = differences(getattr(expected, name), getattr(got, name))
        assert not found, f"{where}, {name}: {found}"
    found = differences((expected.arguments, expected.result), (got.arguments, got.result))
    assert not found, f"{where}: {found}"
