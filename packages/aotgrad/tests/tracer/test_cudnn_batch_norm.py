"""cuDNN's batch norm, which eager calls for float32 on a GPU, is traced as the one that every device has."""

from __future__ import annotations

import msgspec
import pytest
import torch
import torch.nn.functional as F

from aotgrad import AotGrad, bind_interpreted
from aotgrad.testing import capture_by_torch_function
from stagewire.graph import Value


def program(x, w, b, m, v):
    return torch.batch_norm(x, w, b, m, v, True, 0.2, 1e-5, True)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6, 2)], ids=str)
def test_results_gradients_and_statistics(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape, requires_grad=True), *(torch.randn(3, requires_grad=True) for _ in "wb"),
              torch.zeros(3), torch.ones(3)]  # fmt: skip
    capture, inputs = capture_by_torch_function(program, [x.detach().requires_grad_(x.requires_grad) for x in inputs])
    (node,) = [node for node in capture.graph.nodes if "batch_norm" in node.target]
    more = tuple(Value(f"more{k}", node.results[0].type) for k in range(3))
    called = msgspec.structs.replace(
        node, target="aten.cudnn_batch_norm.default", args=node.args[:8], results=(*node.results, *more)
    )
    nodes = tuple(called if one is node else one for one in capture.graph.nodes)
    capture = msgspec.structs.replace(capture, graph=msgspec.structs.replace(capture.graph, nodes=nodes))
    grad = AotGrad().run(capture)
    assert grad.binding.tangents
    assert not any("cudnn" in node.target for node in grad.joint.nodes)
    ways = []
    for run in (bind_interpreted(grad), lambda *given: (F.batch_norm(given[0], given[3], given[4], given[1], given[2],
                                                                     True, 0.2, 1e-5),)):  # fmt: skip
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        (out,) = run(*given)
        ways.append((out, *torch.autograd.grad(out.square().sum(), given[:3]), *given[3:]))
    torch.testing.assert_close(ways[0], ways[1])
