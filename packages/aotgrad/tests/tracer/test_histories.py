"""Which results have a backward that another one's frees."""

from __future__ import annotations

import torch

from aotgrad.tracer import gradient
from aotgrad.tracer.gradient import Histories


def test_only_results_that_share_what_is_saved_close_each_other() -> None:
    x, y = (torch.rand(3, requires_grad=True) for _ in range(2))
    shared = x.exp()
    results = [shared * 2, shared + 1, y.sin(), y + 1]
    histories = Histories(results)
    torch.autograd.backward(results, [torch.ones(3)] * 4)
    assert histories.closed_by() == ((0, 1), (0, 1), (2,), ())


def test_each_node_is_asked_once(monkeypatch) -> None:
    """The caches of a decoder are results of every layer, and behind each lie the nodes of all layers before it."""
    asked, is_freed = [], gradient._is_freed
    monkeypatch.setattr(gradient, "_is_freed", lambda node: asked.append(node) or is_freed(node))
    x = torch.rand(3, requires_grad=True)
    results = [x]
    for _ in range(12):
        results.append((results[-1] * 2).exp())
    histories = Histories(results[1:])
    torch.autograd.backward(results[1:], [torch.ones(3)] * 12)
    assert histories.closed_by() == ()
    assert len(asked) == len(set(asked)) > 24
