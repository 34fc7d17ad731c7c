"""Context variables: what is read is guarded, what is set is set, tokens survive graph breaks."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token, copy_context
from typing import Any

import pytest
import torch

from bytecap import executor, graph_break, optimize
from bytecap.testing import check

NUMBER: ContextVar[Any] = ContextVar("number", default=2.0)
BARE: ContextVar[Any] = ContextVar("bare")
OTHER: ContextVar[Any] = ContextVar("other", default=None)


def set_and_reset(x):
    token = NUMBER.set(5.0)
    try:
        y = x * NUMBER.get()
    finally:
        NUMBER.reset(token)
    return y + NUMBER.get()


def nested(x):
    first = NUMBER.set(5.0)
    second = NUMBER.set(7.0)
    y = x * NUMBER.get()
    NUMBER.reset(second)
    y = y + NUMBER.get()
    NUMBER.reset(first)
    return y + NUMBER.get(), second.var is NUMBER, type(first) is Token


def out_of_turn(x):
    first = NUMBER.set(5.0)
    second = NUMBER.set(7.0)
    NUMBER.reset(first)
    y = x * NUMBER.get()
    NUMBER.reset(second)
    return y + NUMBER.get()


def twice(x):
    token = NUMBER.set(5.0)
    NUMBER.reset(token)
    NUMBER.set(6.0)
    return x * NUMBER.get()


def two_variables(x):
    number = NUMBER.set(x + 1)
    other = OTHER.set({"x": x})
    y = OTHER.get()["x"] * NUMBER.get()
    OTHER.reset(other)
    NUMBER.reset(number)
    return y, OTHER.get()


def unbound(x):
    token = ContextVar.set(NUMBER, 3.0)
    y = x * ContextVar.get(NUMBER)
    ContextVar.reset(NUMBER, token)
    return y * ContextVar.get(BARE, 4.0)


def missing(x):
    try:
        return x * BARE.get()
    except LookupError:
        return x * BARE.get(8.0)


def token_given_away(x):
    return x * 2, NUMBER.set(9.0).var is NUMBER


def wrong_calls(x):
    for call in (NUMBER.set, NUMBER.reset, lambda: NUMBER.get(1, 2)):
        try:
            call()
        except TypeError:
            x = x + 1
    return x


PROGRAMS = [set_and_reset, nested, out_of_turn, twice, two_variables, unbound, missing, token_given_away, wrong_calls]


def _in_own_context(function: Callable[..., Any], *args: Any) -> tuple[Any, dict[str, Any]]:
    """The result, and what the variables hold afterwards."""
    context = copy_context()
    result = context.run(function, *args)
    return result, {variable.name: context.get(variable) for variable in (NUMBER, BARE, OTHER)}


def _assert_same(program: Callable[..., Any], *changes: Callable[[], Any]) -> None:
    """A compiled program finds what the plain one finds, before and after changes of the context."""
    compiled = optimize(program, lambda capture, inputs: executor(capture))

    def steps(function: Callable[..., Any]) -> list[Any]:
        seen = []
        for change in (lambda: None, *changes, lambda: None):
            change()
            seen.append(_in_own_context(function, torch.arange(3.0)))
        return seen

    plain, found = (copy_context().run(steps, function) for function in (program, compiled))
    torch.testing.assert_close(found, plain, rtol=0, atol=0)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_is_set_is_read_and_left_as_by_python(program):
    _assert_same(program, lambda: NUMBER.set(11.0), lambda: BARE.set(3.0), lambda: NUMBER.set(2.0))


@pytest.mark.parametrize("program", [set_and_reset, nested, unbound, missing], ids=lambda program: program.__name__)
def test_one_graph(program):
    check(lambda: (program, ((torch.arange(3.0),), {})))


def broken(x):
    outer = NUMBER.set(5.0)
    try:
        inner = NUMBER.set(x + 1)
        try:
            y = x * NUMBER.get()
            graph_break()
            y = y + NUMBER.get()
        finally:
            NUMBER.reset(inner)
        graph_break()
        y = y * NUMBER.get()
    finally:
        NUMBER.reset(outer)
    return y + NUMBER.get()


def used_token_over_a_break(x):
    token = NUMBER.set(5.0)
    y = x * NUMBER.get()
    NUMBER.reset(token)
    graph_break()
    try:
        NUMBER.reset(token)
    except RuntimeError:
        y = y + NUMBER.get()
    return y


def _called(x):
    y = x * NUMBER.get()
    graph_break()
    return y + NUMBER.get()


def break_in_a_call(x):
    token = NUMBER.set(5.0)
    try:
        y = _called(x)
    finally:
        NUMBER.reset(token)
    return y * NUMBER.get()


def object_read_before(x):
    before = OTHER.get()
    token = OTHER.set([x])
    graph_break()
    y = OTHER.get()[0] + (0 if before is None else before["x"])
    OTHER.reset(token)
    return y, OTHER.get()


@pytest.mark.parametrize(
    "program",
    [broken, used_token_over_a_break, break_in_a_call, object_read_before],
    ids=lambda program: program.__name__,
)
def test_tokens_over_graph_breaks(program):
    _assert_same(program, lambda: NUMBER.set(11.0), lambda: OTHER.set({"x": torch.ones(3)}))


def test_a_failure_leaves_the_variable_as_python_does():
    def program(x):
        token = NUMBER.set(5.0)
        try:
            if x.shape[0] > 2:
                raise ValueError("long")
            return x * NUMBER.get()
        finally:
            NUMBER.reset(token)

    compiled = optimize(program, lambda capture, inputs: executor(capture))
    for _ in range(2):
        with pytest.raises(ValueError, match="long"):
            compiled(torch.ones(3))
        assert NUMBER.get() == 2.0


def test_what_stands_between_breaks_is_captured():
    graphs = []

    def backend(capture, inputs):
        graphs.append([node.target for node in capture.graph.nodes])
        return executor(capture)

    compiled = optimize(broken, backend)
    assert copy_context().run(compiled, torch.ones(3)).tolist() == [22.0, 22.0, 22.0]
    assert [target for graph in graphs for target in graph if target != "operator.add"] == ["operator.mul"]
