"""Programs run plain and captured: what modules of open-source projects are made of."""

from __future__ import annotations

import array
import collections
import enum
import inspect
import logging

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


# -- numbers that the program itself wrote into tensors


@PROGRAMS.add(lambda: tensor(4, 6))
def sizes_in_tensors(x):
    sizes = torch.tensor([2, 3, 4])
    return x.reshape(sizes.tolist()), x[: sizes[0]], x[:, sizes[1:][0]], torch.zeros(torch.LongTensor([3, 2]).tolist())


@PROGRAMS.add(matrix)
def sizes_that_are_computed(x):
    sizes = torch.tensor([2, 3]) + 1
    return x.new_zeros(sizes.tolist())


# -- indices and numbers of unusual classes


class Scale(enum.IntEnum):
    SMALL = 2
    LARGE = 3


@PROGRAMS.add(matrix, lambda: Scale.LARGE)
def members_of_an_int_enum(x, scale):
    return x * scale, x.view(scale, -1), x.sum(Scale.SMALL - 1), x[: Scale.SMALL]


@PROGRAMS.add(matrix)
def rows_of_a_range(x):
    y = x * 1
    y[range(2), [1, 2]] = 0.0
    return x[range(3), (x * 2).argmax(1)], y, torch.tensor(range(3))


LOG = logging.getLogger("projects")


@PROGRAMS.add(matrix)
def messages_about_shapes(x):
    LOG.debug("got %s and %s", x.shape, (x.dtype, x.shape[0]))
    return x + 1


# -- identity and changes of small objects


@PROGRAMS.add(matrix)
def tuples_that_are_one_object(x, *rest):
    pair, empty = (1, 2), ()
    again, nothing = (1, 2), tuple(x.shape[2:])
    return pair is again, empty is nothing, rest is empty, pair is rest, x + 1


@PROGRAMS.add(matrix, lambda: bytearray(b"ab"), lambda: array.array("i", [1]), refusal="BC003")
def buffers_change_behind_the_capture(x, text, numbers):
    y = torch.relu(x) + 1
    y = y * text[0]
    text.append(99)
    text += b"d"
    numbers += array.array("i", [2])
    return y * len(text), bytes(text), text == b"abcd", numbers[-1]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


class Processor:
    def __call__(self, attention, x, mask=None, scale=2):
        return x * scale


PROCESSOR = Processor()


@PROGRAMS.add(lambda: torch.ones(2))
def arguments_that_a_processor_takes(x):
    names = set(inspect.signature(PROCESSOR.__call__).parameters.keys())
    given = {"scale": 3, "other": 1}
    taken = {name: value for name, value in given.items() if name in names}
    kinds = [parameter.name for parameter in inspect.signature(PROCESSOR.__call__).parameters.values()]
    return PROCESSOR(None, x, **taken), [name for name in given if name not in names], kinds
