"""Recording: equal statements once, errors that say what is wrong, views looked through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopir import numpy_ops
from loopir.builder import Recorder, View, record
from loopir.errors import MalformedNest
from loopir.interpret import interpret
from loopir.schedule import Schedule, freeze
from loopir.testing.irregular_steps import OPS
from stagewire import index as ix
from stagewire.errors import UnknownOp
from stagewire.graph import Ref
from stagewire.loop import Buffer, Compute, Load, Store
from stagewire.loop_ops import PREDICATES, arity
from stagewire.statements import statements_of
from stagewire.types import contiguous

TYPES = {"x": contiguous("float32", (4, 8)), "y": contiguous("float32", (4, 8)), "n": contiguous("int64", (4,))}


def body_of(function: Any) -> list[Any]:
    return list(statements_of(record("k", TYPES, (4, 8), function)))


def test_equal_statements_are_recorded_once() -> None:
    def body(ops: Recorder, i: Any, j: Any) -> None:
        a = ops.add(ops.load("x", i, j), ops.load("x", i, j))
        b = ops.mul(ops.load("x", i, j), 2.0)
        ops.store("y", (i, j), ops.add(ops.mul(b, a), ops.mul(a, b)))

    found = body_of(body)
    assert [type(s).__name__ for s in found] == ["Load", "Compute", "Compute", "Compute", "Compute", "Store"]


def test_zero_and_minus_zero_are_two_literals() -> None:
    def body(ops: Recorder, i: Any, j: Any) -> None:
        x = ops.load("x", i, j)
        ops.store("y", (i, j), ops.sub(ops.add(x, 0.0), ops.add(x, -0.0)))

    assert sum(isinstance(s, Compute) and s.op == "add" for s in body_of(body)) == 2


def test_one_and_true_are_two_literals() -> None:
    def body(ops: Recorder, i: Any, j: Any) -> None:
        n = ops.load("n", i)
        ops.store("n", (i,), ops.add(ops.maximum(n, 1), ops.maximum(n, True)))

    assert sum(isinstance(s, Compute) and s.op == "maximum" for s in body_of(body)) == 2


def test_values_of_an_inner_loop_are_not_shared_outside() -> None:
    def body(ops: Recorder, i: Any) -> None:
        with ops.over(8) as (j,):
            top = ops.reduce("max", ops.load("x", i, j))
        with ops.over(8) as (j,):
            ops.store("y", (i, j), ops.sub(ops.load("x", i, j), top))

    nest = record("k", TYPES, (4,), body)
    assert [sum(isinstance(s, Load) for s in section.statements) for section in nest.sections] == [1, 1]


def test_sizes_of_one_need_no_axis() -> None:
    types = {"x": contiguous("float32", (1, 8, 1)), "y": contiguous("float32", (1, 8, 1))}
    nest = record("k", types, (1, 8, 1), lambda ops, *i: ops.store("y", i, ops.neg(ops.load("x", *i))))
    assert [axis.size for axis in nest.axes] == [8]


def test_a_view_is_looked_through() -> None:
    types = {**TYPES, "t": contiguous("float32", (8, 4))}
    views = {"t": View("x", lambda place, sizes: (place[1], place[0]))}
    nest = record("k", types, (8, 4), lambda ops, i, j: ops.store("t", (i, j), ops.load("t", i, j)), views=views)
    read, write = statements_of(nest)
    assert isinstance(read, Load)
    assert isinstance(write, Store)
    assert (read.buffer, read.index) == ("x", write.index[::-1])


def test_nothing_is_read_from_an_empty_buffer() -> None:
    types = {"x": contiguous("float32", (0,)), "y": contiguous("float32", (3,))}
    nest = record("k", types, (3,), lambda ops, i: ops.store("y", (i,), ops.load("x", i, other=7.0)))
    (write,) = statements_of(nest)
    assert isinstance(write, Store)
    assert write.value == 7.0


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (lambda ops, i, j: ops.gamma(ops.load("x", i, j)), UnknownOp, "has no op 'gamma'"),
        (lambda ops, i, j: ops.load("x", i), MalformedNest, "x has 2 dimensions, 1 coordinates"),
        (lambda ops, i, j: ops.add(ops.load("x", i, j)), MalformedNest, "add takes 2 operands, got 1"),
        (lambda ops, i, j: ops.add(1.0, 2.0), MalformedNest, "one operand at least must be a value"),
        (lambda ops, i, j: ops.load("x", i, 1.5), MalformedNest, "1.5 is no coordinate"),
    ],
)
def test_mistakes_are_named(body: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text.replace("(", r"\(")):
        record("k", TYPES, (4, 8), body)


def test_a_computed_position_that_is_an_index_stays_one() -> None:
    def body(ops: Recorder, i: Any, j: Any) -> None:
        row = ops.wrap_index(ops.index(i), ops.index(ix.constant(4)))
        ops.store("y", (i, j), ops.load("x", row, j))

    read = next(s for s in body_of(body) if isinstance(s, Load))
    assert all(not ix.has_values(c) for c in read.index)


@given(op=st.sampled_from(OPS), seed=st.integers(0, 99), shape=st.tuples(*[st.integers(0, 3)] * 2))
def test_a_kernel_by_hand_computes_each_op(op: str, seed: int, shape: tuple[int, int]) -> None:
    """Of numbers, nan, inf and -0.0, and once more of a literal, which is folded or not."""
    random = np.random.default_rng(seed)
    arrays = [random.choice([1.5, 0.25, -2.0, np.nan, np.inf, -np.inf, -0.0], shape).astype(np.float32) for _ in "abc"]
    kind = contiguous("bool" if op in PREDICATES else "float32", shape)
    types = {**dict.fromkeys("abc", contiguous("float32", shape)), "y": kind, "z": kind}

    def body(ops: Recorder, i: Any, j: Any) -> None:
        operands = [ops.load(name, i, j) for name in "abc"[: arity(op)]]
        ops.store("y", (i, j), getattr(ops, op)(*operands))
        ops.store("z", (i, j), getattr(ops, op)(operands[0], *[2.0] * (arity(op) - 1)))

    buffers = {name: Buffer(name, type, "input" if name in "abc" else "kernel") for name, type in types.items()}
    nest = record("k", types, shape, body)
    schedule = Schedule(buffers=buffers, inputs=tuple("abc"), outputs=(Ref("y"), Ref("z")), items=(nest,))  # type: ignore[arg-type]
    found = interpret(freeze(schedule), arrays)
    twos = [np.full_like(arrays[0], 2.0)] * (arity(op) - 1)
    for have, operands in zip(found, (arrays[: arity(op)], [arrays[0], *twos]), strict=True):
        want = numpy_ops.rounded(numpy_ops.apply(op, operands, "float32"), kind.dtype)
        np.testing.assert_array_equal(have, want)  # type: ignore[call-overload]
