"""Decompositions against eager ATen, forward and backward, on drawn samples of torch's operators: convolutions too."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primops.testing.opinfo import Compare, op_infos, run_samples

PARTS = 40
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
SLOW = ("ctc_loss", "linalg", "lu", "svd", "fft", "sparse", "ormqr", "grid_sampler_3d", "pca_lowrank", "matrix_exp")
INFOS = [info for info in op_infos() if not any(word in info.name for word in SLOW)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_decomposition_agrees_with_eager(part: int, data: st.DataObject) -> None:
    """Every ATen call that a sample of an operator leads to."""
    info = data.draw(st.sampled_from(INFOS[part::PARTS]))
    dtype = data.draw(st.sampled_from([one for one in DTYPES if one in info.supported_dtypes("cpu")] or [torch.bool]))
    mode = Compare()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        list(run_samples(mode, info, dtype, samples=2))
    faults = [f"{target}: {fault}" for target, outcome in mode.outcomes.items() for fault in outcome.faults]
    assert not faults, "\n".join(faults)
