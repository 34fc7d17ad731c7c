"""Tables of tuned numbers."""

import dataclasses
import shlex
from pathlib import Path

import pytest

from codegen.cpp.tuning import TUNED, table
from codegen.triton.tuning import SM_90

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize("tuning", [TUNED, SM_90], ids=["cpp", "triton"])
def test_each_number_has_a_unit_and_a_benchmark_that_measures_it(tuning):
    for one in dataclasses.fields(tuning):
        assert all((one.metadata["unit"], one.metadata["meaning"])), one.name
        program, *cases = shlex.split(one.metadata["command"].removeprefix("python benchmarks/"))
        text = (BENCHMARKS / program).read_text()
        assert [case for case in cases if f'"{case.removesuffix(" train")}"' not in text] == [], one.name
    assert len(table(tuning).splitlines()) == len(dataclasses.fields(tuning))
