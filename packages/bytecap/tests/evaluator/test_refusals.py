"""Programs run plain and captured: refusals."""

from __future__ import annotations

import warnings

import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import UnsupportedCall, UnsupportedValue
from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@PROGRAMS.add(matrix, refusal="BC004")
def branch(x):
    if x.sum() > 0:
        return x
    return -x


@PROGRAMS.add(matrix, refusal="BC004")
def item(x):
    return x * x.sum().item()


@PROGRAMS.add(matrix, refusal="BC004")
def float_of_tensor(x):
    return float(x[0, 0]) * x


@PROGRAMS.add(matrix, refusal="BC004")
def boolean_mask_index(x):
    return x[x > 0]


@PROGRAMS.add(matrix, refusal="BC004")
def tolist(x):
    return (x * 2).tolist()


@PROGRAMS.add(lambda: tensor(3).requires_grad_(), refusal="BC002")
def backward(x):
    (x * 2).sum().backward()
    return x.grad


@PROGRAMS.add(matrix, refusal="BC002")
def functionalized(x):
    return torch.func.functionalize(lambda r: r * 2)(x)


with warnings.catch_warnings(action="ignore"):
    torch.nested.nested_tensor([torch.ones(1)])  # says once in a process that it is a prototype


@PROGRAMS.add(matrix, refusal="BC011")
def nested(x):
    return torch.nested.to_padded_tensor(torch.nested.nested_tensor([x[0] * 2, x[1, :2]]), 0.0) + 1


MANY_DIMENSIONS = torch.ones([1] * 65)


@PROGRAMS.add(matrix, refusal="BC003")
def more_dimensions_than_guards_read(x):
    return (MANY_DIMENSIONS + 1).sum() * x, (MANY_DIMENSIONS * 2).reshape(-1)


def test_a_nested_argument_is_refused():
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(UnsupportedValue, match="a nested tensor"):
        optimize(lambda x: x * 2, lambda capture, inputs: executor(capture), fullgraph=True)(x)


def encoder() -> torch.nn.Module:
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("padded", [[[False, False, True], [False] * 3], [[True, False, False], [False] * 3]])
def test_the_fast_path_of_an_encoder_gives_zeros_at_padded_places(padded):
    model, x, mask = encoder(), tensor(2, 3, 8), torch.tensor(padded)
    compiled = optimize(model, lambda capture, inputs: executor(capture))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(
                compiled(x, src_key_padding_mask=mask), model(x, src_key_padding_mask=mask), equal_nan=True
            )


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def test_a_function_of_cython_is_refused_as_unknown():
    numpy = pytest.importorskip("numpy")
    draw = numpy.random.rand

    def program(x):
        return x * draw()

    with pytest.raises(UnsupportedCall):
        optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)(torch.ones(2))
