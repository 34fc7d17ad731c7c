"""Programs run plain and captured: effects."""

from __future__ import annotations

import logging

import pytest
import torch

from bytecap import executor, optimize
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


def test_a_logger_is_looked_up_and_told(caplog):
    def program(x):
        logging.getLogger("bytecap.tests.told").info("called with %s", x.shape)
        return x + 1

    call = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    with caplog.at_level(logging.INFO, "bytecap.tests.told"):
        assert [call(torch.ones(2)).tolist() for _ in range(2)] == [[2.0, 2.0]] * 2
    assert caplog.messages == ["called with torch.Size([2])"] * 2


def test_the_level_of_a_logger_is_guarded():
    logger = logging.getLogger("bytecap.tests.asked")

    def program(x):
        return x * 2 if logging.getLogger("bytecap.tests.asked").level > logging.INFO else x + 1

    call = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    for level in (logging.DEBUG, logging.ERROR, logging.DEBUG):
        logger.setLevel(level)
        assert call(torch.ones(2)).equal(program(torch.ones(2)))
