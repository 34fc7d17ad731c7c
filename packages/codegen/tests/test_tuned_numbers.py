"""Tables of tuned numbers."""

import dataclasses
import shlex
from pathlib import Path

import pytest

from codegen.cpp.tuning import TUNED, table
from codegen.triton import plan
from codegen.triton.tuning import SM_90

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def lacking(command: str) -> list[str]:
    """The cases of a command that its benchmark does not have."""
    program, *cases = shlex.split(command.removeprefix("python benchmarks/"))
    text = (BENCHMARKS / program).read_text()
    return [case for case in cases if f'"{case.removesuffix(" train")}"' not in text]


@pytest.mark.parametrize("tuning", [TUNED, SM_90], ids=["cpp", "triton"])
def test_each_number_has_a_unit_and_a_benchmark_that_measures_it(tuning):
    for one in dataclasses.fields(tuning):
        assert all((one.metadata["unit"], one.metadata["meaning"])), one.name
        assert lacking(one.metadata["command"]) == [], one.name
    assert len(table(tuning).splitlines()) == len(dataclasses.fields(tuning))


def test_each_row_of_a_schedule_has_a_benchmark_that_measures_it():
    tables = (plan.POINTWISE, plan.LOOPS, plan.ELEMENTS, plan.WARPS, plan.AHEAD)
    measured = {name for names in plan.MEASURED_BY.values() for name in names.split("; ")}
    assert measured == {row.name for rows in tables for row in rows}
    assert [command for command in plan.MEASURED_BY if lacking(command)] == []
