"""Sizes that are symbols: one lowering holds for every size."""

from __future__ import annotations

import pytest
import torch

from primops.interpret import interpret
from primops.stage import lower_graph
from primops.verify import verify_graph
from stagewire.parser import parse_graph

GRAPH = parse_graph("""
input %x: f32[s0, 4, 8]
input %w: f32[8]
%m: f32[] = aten.mean.default(%x)
%a: f32[s0, 8] = aten.mean.dim(%x, [1])
%b: f32[4, 8] = aten.mean.dim(%x, [0])
%s: f32[s0, 4, 8] = aten._softmax.default(%x, -1, False)
%l: f32[s0, 4, 8], %mu: f32[s0, 4, 1], %rs: f32[s0, 4, 1] = aten.native_layer_norm.default(%x, [8], %w, %w, 1e-05)
%v: f32[4*s0, 8] = aten.view.default(%l, [4*s0, 8])
%g: f32[s0, 4, 8] = aten.gelu.default(%s)
%n: f32[s0, 4, 8], %sm: f32[4], %si: f32[4] = aten._native_batch_norm_legit.no_stats(%x, None, None, True, 0.1, 1e-05)
%loss: f32[] = aten.mse_loss.default(%x, %s)
%back: f32[s0, 4, 8] = aten.mse_loss_backward.default(%loss, %x, %s, 1)
%r: i64[s0] = aten.arange.default(s0)
%e: f32[s0, 8] = aten.select.int(%x, 1, -1)
%f: f32[2*s0, 4, 8] = aten.cat.default([%x, %x])
%t: f32[s0, 4, 8] = aten.slice.Tensor(%f, 0, s0, 9223372036854775807)
%u: f32[s0, 4, 8] = aten.expand.default(%w, [s0, 4, 8])
return %m, %a, %b, %s, %v, %g, %n, %back, %r, %e, %t, %u
""")


@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_graph_with_a_symbolic_batch(size: int) -> None:
    lowered = lower_graph(GRAPH)
    verify_graph(lowered)
    assert all(node.target.startswith("prims.") for node in lowered.nodes)
    inputs = [torch.randn(size, 4, 8), torch.randn(8)]
    for a, b in zip(interpret(lowered, inputs), interpret(GRAPH, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
