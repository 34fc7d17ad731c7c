"""Which sets of sizes have a callable of their own: those that come again, so many, and none that drives others out."""

from types import SimpleNamespace

import pytest

from codegen.runtime import cuda_graphs
from codegen.runtime.cuda_graphs import PATIENCE, BySizes
from stagewire.expr import Expr
from stagewire.program import Unit
from stagewire.types import ScalarType, TensorType

UNIT = Unit(
    target="cpp", source="", kernels=(), inputs=("x", "m"),
    input_types=(TensorType("float32", (Expr("n"), 4), (4, 1)), ScalarType("int")), outputs=(), instructions=(),
)  # fmt: skip


class Given:
    """An input of so many rows."""

    def __init__(self, rows):
        self.rows = rows

    def size(self, dimension):
        return (self.rows, 4)[dimension]


class Sizes:
    """What runs, by name: "plain", or the sizes of the callable; told: what was said about more sizes than are kept."""

    def __init__(self, most):
        self.made, self.told = [], []
        self.call = BySizes(SimpleNamespace(unit=UNIT, run=lambda *inputs: "plain"), most, self.make, self.told.append)

    def make(self, symbols):
        self.made.append((symbols["n"], symbols["m"]))
        name = self.made[-1]
        return lambda *inputs: name

    def __call__(self, rows, number=7):
        return self.call(Given(rows), number)


def test_sizes_and_numbers_that_come_again_have_a_callable():
    run = Sizes(8)
    assert [run(3), run(5), run(3), run(3, 9), run(5), run(3), run(3, 9)] == [
        "plain", "plain", (3, 7), "plain", (5, 7), (3, 7), (3, 9),
    ]  # fmt: skip
    assert run.made == [(3, 7), (5, 7), (3, 9)]


def test_a_list_of_inputs_is_handed_on_and_an_empty_one_lets_go():
    run = Sizes(8)
    assert [run.call([Given(3), 7]) for _ in range(3)] == ["plain", (3, 7), (3, 7)]
    assert run.call([]) == "plain"
    assert run(3) == (3, 7)
    assert run.made == [(3, 7)] * 2


def test_sizes_that_take_turns_do_not_drive_each_other_out():
    run = Sizes(2)
    seen = [run(rows) for _ in range(10 * PATIENCE) for rows in (3, 4, 5)]
    assert run.made == [(3, 7), (4, 7)]
    assert seen[-3:] == [(3, 7), (4, 7), "plain"]
    (message,) = run.told
    assert "more than 2 sets" in message


def test_sizes_that_come_no_more_give_their_place():
    run = Sizes(2)
    for rows in (3, 3, 4, 4):
        run(rows)
    seen = []
    for _ in range(3 * PATIENCE):
        run(4)
        seen.append(run(5))
    assert seen[0] == "plain"
    assert seen[-1] == (5, 7)
    assert run.made == [(3, 7), (4, 7), (5, 7)]
    assert run(4) == (4, 7)
    assert run(3) == "plain"


def test_nothing_is_kept_where_nothing_may_be():
    run = Sizes(0)
    assert {run(rows) for rows in (3, 4) for _ in range(9)} == {"plain"}


def test_sizes_that_came_once_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda_graphs, "REMEMBERED", 10)
    run = Sizes(8)
    run(1)
    assert {run(rows) for rows in range(2, 14)} == {"plain"}
    assert run(1) == "plain"
    assert run(1) == (1, 7)
