"""Programs run plain and captured: what modules of open-source projects are made of."""

from __future__ import annotations

import collections
import inspect

import pytest
import torch

from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


# -- TorchScript functions


@torch.jit.script
def gated(x, bias, channels):
    split = channels[0]
    both = x + bias
    return torch.tanh(both[:, :split]) * torch.sigmoid(both[:, split:])


@PROGRAMS.add(lambda: matrix().requires_grad_(), matrix)
def scripted_function(x, bias):
    return gated(x, bias, torch.IntTensor([2])), gated(bias, x, channels=torch.tensor([2]))


# -- functions of `inspect` on what has no real object


def default(value, other):
    if value is not None:
        return value
    return other() if inspect.isfunction(other) else other


@PROGRAMS.add(matrix)
def lazy_default(x, noise=None):
    y = x * 2
    return default(noise, lambda: y + 1), default(noise, y), default(None, y.sum), inspect.isclass(torch.nn.Linear)


# -- classes made on the way


@PROGRAMS.add(matrix)
def namedtuple_made_inside(x):
    pair = collections.namedtuple("pair", "left right", defaults=(2,))
    made = pair(x * 2)
    return made.left * made.right, made._fields, pair.__name__, pair.__module__, isinstance(made, tuple)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
