"""Recurrent layers of many steps, or of sizes that change, run between two graphs; fullgraph captures them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bytecap
from bytecap.nodes.torch_calls import LONGEST
from stagewire.capture import Capture

LAYERS = [nn.LSTM, nn.GRU, nn.RNN]
CALLS = {nn.LSTM: "torch.lstm", nn.GRU: "torch.gru", nn.RNN: "torch.rnn_tanh"}


class Around(nn.Module):
    def __init__(self, layer: type[nn.RNNBase], **settings: object) -> None:
        super().__init__()
        self.layer, self.last = layer(4, 6, batch_first=True, **settings), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.layer(x * 2)[0]))


class Eager:
    takes_symbols = True

    def __init__(self) -> None:
        self.captures: list[Capture] = []

    def __call__(self, capture: Capture, inputs: tuple[object, ...]):
        self.captures.append(capture)
        return bytecap.executor(capture)

    def calls(self, target: str) -> int:
        return sum(node.target == target for capture in self.captures for node in capture.graph.nodes)


def run(layer: type[nn.RNNBase], lengths: tuple[int, ...], training: bool = True, **options: object) -> Eager:
    """Results and gradients are eager's at each length, the batch changing with it."""
    backend, model = Eager(), Around(layer)
    fast = bytecap.optimize(model, backend, **options)
    for batch, length in enumerate(lengths, 2):
        x = torch.randn(batch, length, 4)
        results = []
        with torch.set_grad_enabled(training):
            for function in (fast, model):
                model.zero_grad()
                y = function(x)
                if training:
                    y.sum().backward()
                results.append([y.detach(), *(p.grad.clone() for p in model.parameters() if training)])
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    return backend


@pytest.mark.parametrize("layer", LAYERS)
def test_many_steps(layer: type[nn.RNNBase]) -> None:
    """oneDNN takes LSTMs as a whole."""
    few, many = (LONGEST,), (LONGEST + 1,)
    assert run(layer, few).calls(CALLS[layer]) == 1
    assert run(layer, many).calls(CALLS[layer]) == (layer is nn.LSTM)
    assert run(layer, many, fullgraph=True).calls(CALLS[layer]) == 1


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_sizes_that_change(layer: type[nn.RNNBase], training: bool) -> None:
    """What is around the layer is captured once for all sizes."""
    backend = run(layer, (3, 5, 7, 11, 13), training, dynamic=True)
    is_whole = layer is nn.LSTM and not training
    assert backend.calls(CALLS[layer]) == is_whole
    assert len(backend.captures) == (2 if layer is nn.LSTM and training else 1)


@pytest.mark.parametrize("layer", LAYERS)
def test_sizes_that_change_in_one_graph(layer: type[nn.RNNBase]) -> None:
    assert run(layer, (3, 5), fullgraph=True, dynamic=True).calls(CALLS[layer]) == 2
