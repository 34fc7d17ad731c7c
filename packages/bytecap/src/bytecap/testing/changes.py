"""Soundness of guards, by example: compile, call, change one thing, call again, and compare with the plain program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bytecap.driver.executor import executor
from bytecap.driver.optimize import optimize
from bytecap.testing.comparison import differences

Program = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any]]


class Cases(dict[str, Callable[[], Program]]):
    """What makes programs, by name; as a decorator it adds one."""

    def __call__(self, make: Callable[[], Program]) -> Callable[[], Program]:
        self[make.__name__] = make
        return make


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result, or class and text of the exception."""
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def check_change(program: Program) -> list[Any]:
    """program: (function, arguments, change); a change that is a context manager holds while the calls are compared.

    Returns the events of the compiled function. Raises AssertionError where a result is not the plain one.
    """
    function, args, change = program
    events: list[Any] = []
    compiled = optimize(function, lambda capture, inputs: executor(capture), on_event=events.append)
    for _ in range(2):
        assert_alike(outcome(compiled, args), outcome(function, args))
    context = change()
    with context if hasattr(context, "__exit__") else contextlib.nullcontext():
        for _ in range(3):
            assert_alike(outcome(compiled, args), outcome(function, args))
    return events


def check_arguments(function: Callable[..., Any], before: Callable[[], Any], after: Callable[[], Any]) -> None:
    """Calls with `before()`, then with `after()`, then with the first again; each makes its arguments anew."""
    compiled = optimize(function, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    for make in (before, before, after, after, after, before):
        assert_alike(outcome(compiled, make()), outcome(function, make()))


def assert_alike(ours: Any, plain: Any) -> None:
    """Equal values, types and layouts; modules and other objects are compared by identity."""
    if isinstance(plain, torch.Tensor) and plain.device.type == "meta":
        assert (ours.device, ours.shape, ours.dtype) == (plain.device, plain.shape, plain.dtype)
    else:
        assert not differences(ours, plain), differences(ours, plain)


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name = value` for a while."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def setting(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """A setting with a reader and a writer has another value for a while."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)
