"""Random numbers by formula, in torch."""

import pytest
import torch

from absint.philox import philox_state, uniform
from stagewire.philox import draw, in_unit_interval


@pytest.mark.parametrize(("threads", "width"), [(256, 1), (512, 4), (256, 8)])
def test_numbers_of_a_tensor_are_those_of_its_elements(threads, width):
    seed, offset, count = 0x1234_5678_9ABC_DEF0, 4 * ((1 << 32) - 2), 3000
    expected = []
    for element in range(count):
        words, number = draw(seed, offset, element, threads, width)
        expected.append(float(in_unit_interval(torch.tensor(float(words[number]), dtype=torch.float32))))
    found = uniform(seed, offset, torch.arange(count), threads, width)
    assert found.dtype == torch.float32
    assert found.tolist() == expected


def test_a_cpu_has_no_offset_and_draws_its_seed():
    torch.manual_seed(3)
    seed, offset = philox_state(8, "cpu")
    torch.manual_seed(3)
    assert seed == torch.empty((), dtype=torch.int64).random_()
    assert (offset.item(), offset.dtype) == (0, torch.int64)
