"""float64 variance is two passes; the chain of Welford's update is left to narrower dtypes."""

from __future__ import annotations

import pytest

from loopir.testing.graphs import kernels, lowered
from stagewire.loop import Reduce

GRAPH = """
input %x: {0}[4, 8]
%v: {0}[4], %m: {0}[4] = prims.var_mean(%x, [1], 1)
return %v, %m
"""


@pytest.mark.parametrize(("dtype", "expected"), [("f64", ["sum", "sum"]), ("f32", ["welford"]), ("bf16", ["welford"])])
def test_how_variance_is_reduced(dtype: str, expected: list[str]) -> None:
    statements = [
        s for k in kernels(lowered(GRAPH.format(dtype))) for section in k.sections for s in section.statements
    ]
    assert [s.reduction for s in statements if isinstance(s, Reduce)] == expected
