"""Norms of numbers so small that epsilon is most of what they are divided by."""

from __future__ import annotations

import pytest
import torch

from primops.interpret import tensor_type
from primops.testing.opinfo import run_as_graph


@pytest.mark.parametrize("eps", [None, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rms_norm_without_an_epsilon_takes_that_of_what_it_computes_in(dtype: torch.dtype, eps: float | None) -> None:
    """The call itself is one of a GPU: elsewhere it is other calls before a mode sees it."""
    target = "aten._fused_rms_norm.default"
    x = torch.randn(3, 8, dtype=dtype) * 1e-4
    for args in ((x, [8], torch.randn(8, dtype=dtype), eps), (torch.zeros_like(x), [8], None, eps)):
        wanted = torch.ops.aten._fused_rms_norm(*args)
        found = run_as_graph(target, args, {}, tuple(tensor_type(one) for one in wanted))
        torch.testing.assert_close(found, wanted)
