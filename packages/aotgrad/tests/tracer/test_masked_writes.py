"""Writes through boolean masks: as eager, and differentiable with static shapes."""

from __future__ import annotations

import pytest
import torch

from aotgrad.testing import capture_by_torch_function, check_against_eager

ROWS = {"a row": (4,), "one number": (), "a row of one": (1, 4), "a column": (1,)}


@pytest.mark.parametrize("shape", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("wrapped", [False, True], ids=["x[mask]", "x[mask,]"])
def test_one_value_written_where_a_mask_holds(shape: tuple[int, ...], wrapped: bool) -> None:
    def program(x: torch.Tensor, row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[(mask,) if wrapped else mask] = row
        return y * y

    torch.manual_seed(0)
    x, row = torch.randn(2, 3, 4, requires_grad=True), torch.randn(shape, requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    capture, inputs = capture_by_torch_function(program, [x, row, mask])
    grad = check_against_eager(capture, inputs)
    assert grad.backward is not None


def test_a_whole_mask_and_a_view() -> None:
    def program(x: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.t()[mask] = value
        return y.exp()

    torch.manual_seed(0)
    x, value = torch.randn(3, 4, requires_grad=True), torch.randn((), requires_grad=True)
    capture, inputs = capture_by_torch_function(program, [x, value, torch.rand(4, 3) > 0.5])
    assert check_against_eager(capture, inputs).backward is not None


@pytest.mark.parametrize("shape", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_index_put_where_a_mask_holds(shape: tuple[int, ...], accumulate: bool, in_place: bool) -> None:
    def program(x: torch.Tensor, row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if in_place:
            return (x * 2).index_put_((mask,), row, accumulate).exp()
        return x.t().contiguous().t().index_put((mask,), row, accumulate)

    torch.manual_seed(0)
    x, row = torch.randn(3, 4, requires_grad=True), torch.randn(shape, requires_grad=True)
    capture, inputs = capture_by_torch_function(program, [x, row, torch.tensor([True, False, True])])
    assert check_against_eager(capture, inputs).backward is not None
