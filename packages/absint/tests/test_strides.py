"""Stride arithmetic against the real tensors' own answers."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from absint.meta import from_tensor
from absint.strides import (
    contiguous_stride,
    is_channels_last,
    is_contiguous,
    is_dense,
    preserve_stride,
    suggest_format,
    view_stride,
)
from absint.testing import OracleMode
from absint.testing.strategies import laid_out, shapes, tensors

RUNS = settings(max_examples=200, deadline=None)


@RUNS
@given(tensors())
def test_contiguity(tensor):
    meta = from_tensor(tensor)
    assert is_contiguous(meta.shape, meta.stride) == tensor.is_contiguous()


@RUNS
@given(tensors())
def test_density(tensor):
    meta = from_tensor(tensor)
    real = torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
    assert is_dense(meta.shape, meta.stride) == real


@RUNS
@given(shapes(4).filter(lambda s: len(s) == 4).flatmap(lambda s: laid_out(s, torch.float32)))
def test_channels_last(tensor):
    meta = from_tensor(tensor)
    assert is_channels_last(meta.shape, meta.stride) == tensor.is_contiguous(memory_format=torch.channels_last)


@RUNS
@given(st.data())
def test_suggested_format_decides_upsampling(data):
    """at::empty(size, x.suggest_memory_format()) is what interpolation allocates."""
    shape = tuple(data.draw(st.integers(1, 4)) for _ in range(4))
    tensor = data.draw(laid_out(shape, torch.float32))
    result = torch.ops.aten.upsample_nearest2d(tensor, [5, 6])
    wanted = suggest_format(from_tensor(tensor))
    assert torch.empty(result.shape, memory_format=wanted).stride() == result.stride()


@RUNS
@given(tensors())
def test_preserved_strides(tensor):
    meta = from_tensor(tensor)
    assert preserve_stride(meta.shape, meta.stride) == torch.empty_like(tensor).stride()


@RUNS
@given(tensors(), st.data())
def test_view_strides(tensor, data):
    meta = from_tensor(tensor)
    new = data.draw(st.permutations(tensor.shape).map(tuple))
    split = data.draw(st.integers(0, len(new)))
    for shape in (new, (*new[:split], 1, *new[split:]), _merge(new, split)):
        ruled = view_stride(meta.shape, meta.stride, shape)
        try:
            real = tensor.view(shape).stride()
        except RuntimeError:
            real = None
        assert ruled == real


def _merge(shape, at):
    if len(shape) < 2:
        return shape
    at = min(at, len(shape) - 2)
    return (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])


@RUNS
@given(shapes())
def test_contiguous_stride(shape):
    assert contiguous_stride(shape) == torch.empty(shape).stride()


@pytest.mark.parametrize("shape", [(2, 3, 1, 4), (1, 3, 4, 1), (1, 1, 4, 3), (4, 3, 1, 1), (2, 3, 2, 2)])
def test_the_gradient_of_a_batch_norm_is_laid_out_as_eagers(shape):
    """In every order of the dimensions of input and gradient."""
    number = shape[1]
    channels = [torch.ones(number) for _ in range(5)]
    orders = [torch.rand([shape[d] for d in order]).permute(*map(order.index, range(4)))
              for order in itertools.permutations(range(4))]  # fmt: skip
    for x, gradient in itertools.product(orders, orders):
        oracle = OracleMode()
        with oracle:
            torch.ops.aten.native_batch_norm_backward(gradient, x, *channels, True, 1e-5, [True, True, True])
        assert not oracle.mismatches
        assert oracle.checked
