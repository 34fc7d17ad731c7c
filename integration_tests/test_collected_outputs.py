"""Hidden states that transformers collects through hooks, of a model that another runs inside of."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stagefold
from bytecap.testing.breaking import each, forced_breaks
from integration_tests.zoo import shrunken
from integration_tests.zoo.reference import tensors_of

pytest.importorskip("transformers", reason="transformers is an optional extra")
pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore")]


def model_and_inputs() -> tuple[Any, dict[str, Any]]:
    """GIT, whose vision model collects while its text model does; it has run once, which registers the hooks."""
    torch.manual_seed(0)
    model = shrunken.build("GitForCausalLM").eval()
    inputs = {**shrunken.inputs_of(model), "output_hidden_states": True}
    with torch.no_grad():
        model(**inputs)
    return model, inputs


def assert_collected(found: Any, expected: Any) -> None:
    assert len(expected.hidden_states) == 3
    ours, eager = dict(tensors_of(found)), dict(tensors_of(expected))
    assert ours.keys() == eager.keys()
    for name, value in eager.items():
        torch.testing.assert_close(ours[name], value)


@pytest.mark.parametrize("backend", ["eager", "stagefold"])
def test_the_outer_model_collects_as_well(backend: str) -> None:
    model, inputs = model_and_inputs()
    compiled = stagefold.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        expected = model(**inputs)
        for _ in range(2):
            assert_collected(compiled(**inputs), expected)
        assert_collected(model(**inputs), expected)  # nothing is left behind


@pytest.mark.parametrize("count", [60, 400])
def test_so_it_does_with_breaks_in_between(count: int) -> None:
    model, inputs = model_and_inputs()
    compiled = stagefold.compile(model, backend="eager")
    with torch.no_grad():
        expected = model(**inputs)
        with forced_breaks(each(count)):
            found = compiled(**inputs)
        assert_collected(found, expected)
        assert_collected(model(**inputs), expected)
