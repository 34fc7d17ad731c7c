"""What programs of users do: each probe has the outcome that docs/features.md says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stagefold
from integration_tests.features import graphs, python, tensors
from integration_tests.features.probe import Probe, Probes, outcome_of
from integration_tests.zoo.devices import DEVICES

PROBES = [
    probe
    for module in (python, tensors, graphs)
    for probes in vars(module).values()
    if isinstance(probes, Probes)
    for probe in probes.rows
]


def compiled(program: Callable[..., Any], fullgraph: bool) -> Callable[..., Any]:
    return stagefold.compile(program, fullgraph=fullgraph)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: f"{probe.area}: {probe.name}")
def test_probe(probe: Probe, device: str) -> None:
    outcome, said = outcome_of(probe, compiled, device)
    expected = ("none", probe.on_gpu or probe.outcome) if device == "cuda" else (probe.outcome,)
    assert outcome in expected, said
