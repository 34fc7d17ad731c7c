"""Marks of tests that need an NVIDIA GPU (`nox -s gpu`), and devices that a test is run on."""

from __future__ import annotations

import pytest
import torch

NEEDS_GPU = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch.cuda.is_available() is False: no NVIDIA GPU here"
)
ON_GPU = [pytest.mark.gpu, NEEDS_GPU]
TWO_GPUS = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch.cuda.device_count() is below 2"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]
