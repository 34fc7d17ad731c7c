"""A GPU without index is the current one, and another one later is another capture. Torch is told of two GPUs here."""

import pytest
import torch

from bytecap.nodes import call_arguments
from bytecap.nodes.call_arguments import with_index


class Guarded:
    def __init__(self):
        self.readings, self.guards = [], self

    def reading(self, function, arguments, value):
        self.readings.append((function, arguments, value))


@pytest.mark.parametrize("current", [0, 1])
def test_calls_name_the_current_gpu(monkeypatch, current):
    def get():
        return current

    monkeypatch.setattr(call_arguments, "_GET", get)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    x, expected = torch.ones(2), torch.device("cuda", current)
    for function, given, wanted in (
        (torch.Tensor.cuda, ((x,), {}), ((x,), {"device": expected})),
        (torch.Tensor.cuda, ((x, "cuda"), {}), ((x, expected), {})),
        (torch.Tensor.to, ((x, "cuda", torch.float64), {}), ((x, expected, torch.float64), {})),
        (torch.Tensor.to, ((x,), {"device": "cuda"}), ((x,), {"device": expected})),
        (torch.arange, ((3,), {"device": torch.device("cuda")}), ((3,), {"device": expected})),
    ):
        guarded = Guarded()
        assert with_index(guarded, function, *given) == wanted
        assert guarded.readings == [(get, (), current)]
    for function, given in (
        (torch.Tensor.to, ((x, "cuda:1"), {})),
        (torch.Tensor.to, ((x, torch.float64), {})),
        (torch.arange, ((3,), {"device": "cpu"})),
        (torch.Tensor.add, ((x, x), {})),
    ):
        guarded = Guarded()
        assert with_index(guarded, function, *given) == given
        assert not guarded.readings
