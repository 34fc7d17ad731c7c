"""Real models through all five stages, inference and training, against eager."""

from __future__ import annotations

import copy

import pytest
import torch

import stagefold
from examples.models import CASES, Case
from examples.worker import Program, largest_error

TOLERANCE = 1e-3


def parameters() -> list[object]:
    return [
        pytest.param(case, mode, id=f"{name}-{mode}")
        for name, case in CASES.items()
        for mode in ("inference", "training")
    ]


@pytest.mark.parametrize(("case", "mode"), parameters())
def test_model_equals_eager_in_one_graph(case: Case, mode: str) -> None:
    if case.needs_transformers:
        pytest.importorskip("transformers", reason="transformers is an optional extra")
    torch.manual_seed(3)
    model = case.build()
    model.train(mode == "training")
    batch = case.training() if mode == "training" else case.inference()
    eager = Program(case, copy.deepcopy(model), None, mode)
    ours = Program(case, copy.deepcopy(model), "stagefold", mode)
    for step in range(2):
        error, compared = largest_error(eager.step(batch), ours.step(batch))
        assert error < TOLERANCE, f"step {step}: error {error} among {compared} tensors"
    assert len(ours.reports) == 1


def test_one_graph_serves_many_instances() -> None:
    """Parameters are inputs with sources: a second instance of the class needs no new program."""
    first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    @stagefold.compile(fullgraph=True)
    def apply(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(layer(x))

    x = torch.randn(5, 4)
    for layer in (first, second):
        torch.testing.assert_close(apply(layer, x), torch.relu(layer(x)))
