"""Gradients of sparse layout: eager makes them, and what stands around the call that has one is compiled."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stagefold
from bytecap import CaptureWarning
from stagefold.errors import StageError


class Words(nn.Module):
    """A small classifier whose table has sparse gradients."""

    def __init__(self, lookup: nn.Module) -> None:
        super().__init__()
        self.lookup, self.inner, self.outer = lookup, nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        hidden = self.lookup(ids * 1) * scale.exp()
        return self.outer(self.inner(hidden).tanh()).log_softmax(-1)


TABLES: dict[str, Callable[[], nn.Module]] = {
    "embedding": lambda: nn.Embedding(40, 8, sparse=True),
    "padding": lambda: nn.Embedding(40, 8, sparse=True, padding_idx=0),
    "bag": lambda: nn.EmbeddingBag(40, 8, sparse=True, mode="sum"),
}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


def trained(model: nn.Module, call: Callable[..., Any], optimizer: Callable[..., Any]) -> list[Any]:
    """Losses, gradients and parameters of three steps."""
    steps = [optimizer([model.lookup.weight]), torch.optim.SGD(model.outer.parameters(), lr=0.1)]
    seen: list[Any] = []
    for number in range(3):
        generator = torch.Generator().manual_seed(number)
        ids, scale = torch.randint(0, 40, (3, 5), generator=generator), torch.randn(1, generator=generator)
        loss = -call(ids, scale)[..., 0].mean()
        loss.backward()
        table = model.lookup.weight.grad
        assert table.layout is torch.sparse_coo
        seen += [loss.detach(), table.is_coalesced(), table._indices().clone(), table._values().clone()]
        seen += [model.inner.weight.grad.clone()]
        for step in steps:
            step.step()
        model.zero_grad()
    return [*seen, *(one.detach() for one in model.parameters())]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("table", TABLES)
def test_what_stands_around_a_sparse_lookup_is_compiled(table: str, optimizer: str) -> None:
    torch.manual_seed(0)
    model = Words(TABLES[table]())
    eager, compiled = copy.deepcopy(model), copy.deepcopy(model)
    call = stagefold.compile(compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        found = trained(compiled, call, OPTIMIZERS[optimizer])
    torch.testing.assert_close(found, trained(eager, eager, OPTIMIZERS[optimizer]))
    assert {report.name for report in call._backend.reports} == {"Words.forward"}  # no layer by itself


def test_a_graph_of_everything_is_refused() -> None:
    model = Words(TABLES["embedding"]())
    with pytest.raises(StageError, match="sparse_coo"):
        stagefold.compile(model, fullgraph=True)(torch.tensor([1, 2]), torch.ones(1))
