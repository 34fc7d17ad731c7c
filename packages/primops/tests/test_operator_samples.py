"""Decompositions against eager ATen on a share of torch's operator samples; all by `primops.testing.opinfo`."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from absint.testing.opinfo import op_infos
from primops.decompositions import TABLE
from primops.testing.opinfo import Compare, run_samples

PARTS = 8
OTHER_DTYPES = (torch.bfloat16, torch.int64, torch.bool, torch.float64)
SLOW = (
    "ctc_loss", "linalg", "cdist", "lu", "svd", "conv", "special", "fft", "sparse", "unique", "masked.", "window",
    "ormqr", "grid_sampler_3d", "pca_lowrank", "matrix_exp",
)  # fmt: skip
SHARE = 0.4


def plan() -> list[tuple[object, torch.dtype]]:
    """A share of the operators, once in float32 and once in another dtype that they have; the same in every run."""
    chosen: list[tuple[object, torch.dtype]] = []
    draw = random.Random(0)
    for info in op_infos():
        if draw.random() > SHARE or any(word in info.name for word in SLOW):
            continue
        supported = info.supported_dtypes("cpu")
        wanted = [torch.float32] if torch.float32 in supported else []
        others = [dtype for dtype in OTHER_DTYPES if dtype in supported]
        chosen += [(info, dtype) for dtype in (*wanted, *draw.sample(others, min(1, len(others))))]
    return chosen


@pytest.fixture(scope="module")
def planned() -> list[tuple[object, torch.dtype]]:
    return plan()


@pytest.mark.parametrize("part", range(PARTS))
def test_decompositions_agree_with_eager(planned: list[tuple[object, torch.dtype]], part: int) -> None:
    mode = Compare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info, dtype in planned[part::PARTS]:
            torch.manual_seed(0)
            list(run_samples(mode, info, dtype, samples=1))
    faults = [f"{target}: {fault}" for target, outcome in mode.outcomes.items() for fault in outcome.faults]
    assert not faults, "\n".join(faults)
    assert sum(outcome.compared for outcome in mode.outcomes.values()) > 100


def test_every_target_names_an_op_of_torch() -> None:
    for target in TABLE:
        namespace, name, overload = target.split(".")
        assert overload in getattr(getattr(torch.ops, namespace), name).overloads(), target
