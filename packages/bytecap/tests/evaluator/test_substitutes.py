"""`substitute_in_graph`: Python code for functions of C."""

from __future__ import annotations

import operator

import pytest
import torch

from bytecap import executor, optimize, substitute_in_graph
from bytecap.lookasides.replaced_functions import SUBSTITUTES
from bytecap.objects.base import HANDLERS

X = torch.ones(3)


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (operator.countOf, operator.length_hint):
        for table in (SUBSTITUTES, HANDLERS):
            monkeypatch.delitem(table, function, raising=False)


def test_the_substitute_is_evaluated() -> None:
    def program(x):
        return x * operator.countOf([1, 2, 1], 1)

    @substitute_in_graph(operator.countOf)
    def count(a, b, /):
        found = 0
        for item in a:
            found += item == b
        return found + 100

    call = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    assert call(X).equal(X * 102)
    assert program(X).equal(X * 2)
    with pytest.raises(ValueError, match="is substituted by"):
        substitute_in_graph(operator.countOf)


def test_other_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="its substitute"):
        substitute_in_graph(operator.length_hint)(lambda obj: 1)
    assert operator.length_hint not in SUBSTITUTES
    substitute_in_graph(operator.length_hint, skip_signature_check=True)(lambda obj: 1)
    assert operator.length_hint in SUBSTITUTES


def test_functions_of_python_are_refused() -> None:
    with pytest.raises(TypeError, match="function of C"):
        substitute_in_graph(lambda x: x)
