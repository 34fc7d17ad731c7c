"""Programs run plain and captured: effects."""

from __future__ import annotations

import pytest
import torch

from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@PROGRAMS.add(matrix)
def prints(x):
    print("hello", x.shape, 3, sep="-")
    print()
    return x + 1


@PROGRAMS.add(matrix)
def warns(x):
    import warnings

    warnings.warn("careful", UserWarning, stacklevel=2)
    return x + 1


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
