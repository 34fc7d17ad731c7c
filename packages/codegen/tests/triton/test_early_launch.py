"""Kernels that are launched before the one in front has ended wait for it before all else."""

from pathlib import Path

import pytest

import stagewire
from codegen import Options
from codegen.runtime.required_cubins import required_cubins
from codegen.stage import emit
from codegen.triton.compile_server import divided

SAMPLES = sorted((Path(__file__).parents[1] / "data").glob("*.json"))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_kernel_waits_on_gpus_that_launch_it_early(sample):
    unit = emit(stagewire.load(sample, expect="loop").forward, Options(target="triton"))
    assert unit.kernels
    functions = {info.function or info.name for info in unit.kernels}
    _, texts = divided(unit.source, functions)
    for name in functions:
        assert texts[name].splitlines()[2].strip() == "begin(EARLY)", texts[name]
    for one in required_cubins(unit):
        assert [one.job(capability)["constants"]["EARLY"] for capability in (80, 89, 90, 120)] == [0, 0, 1, 1]
