"""`result_type` against `torch.result_type`, over tensors, 0-dim tensors and numbers."""

import itertools

import pytest
import torch

from absint.meta import contiguous
from absint.promote import can_cast, promote_types, result_type

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
NUMBERS = (True, 3, 2.5, 1j)


def test_promote_types_is_torch_promotion():
    for left, right in itertools.product(DTYPES, repeat=2):
        assert promote_types(left, right) is torch.promote_types(left, right)


@pytest.mark.parametrize("shapes", [((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())])
def test_result_type_of_two_tensors(shapes):
    for left, right in itertools.product(DTYPES, repeat=2):
        real = torch.result_type(torch.zeros(shapes[0], dtype=left), torch.zeros(shapes[1], dtype=right))
        metas = contiguous(shapes[0], left), contiguous(shapes[1], right)
        assert result_type(metas) is real, (left, right)


@pytest.mark.parametrize("shape", [(2,), ()])
def test_result_type_of_tensor_and_number(shape):
    for dtype, number in itertools.product(DTYPES, NUMBERS):
        real = torch.result_type(torch.zeros(shape, dtype=dtype), number)
        assert result_type((contiguous(shape, dtype), number)) is real, (dtype, number)


def test_default_dtype_decides_the_float_of_numbers():
    torch.set_default_dtype(torch.float64)
    try:
        assert result_type((contiguous((2,), torch.int32), 1.5)) is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_can_cast_is_torch_can_cast():
    for source, target in itertools.product(DTYPES, repeat=2):
        assert can_cast(source, target) == torch.can_cast(source, target), (source, target)
