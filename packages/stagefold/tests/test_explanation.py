"""explain(): what one call was captured as."""

from __future__ import annotations

import random

import torch
from torch import nn

import stagefold


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        for _ in range(3):
            x = self.linear(x)
            if x.sum() > 1e9:
                break
        print("half-way")
        return torch.relu(x)


def test_breaks_are_listed_once_with_their_counts(capsys):
    model = Model()
    x = torch.ones(2, 3)
    explanation = stagefold.explain(model, x)
    assert capsys.readouterr().out == "half-way\n"
    torch.testing.assert_close(explanation.result, model(x))
    (found,) = explanation.breaks
    assert (found.code, found.count) == ("BC004", 2)
    assert found.where.startswith(f"{__file__}:{Model.forward.__code__.co_firstlineno + 3} in Model.forward")
    assert found.fix
    assert len(explanation.graphs) >= 2
    text = str(explanation)
    assert f"{len(explanation.graphs)} graphs, 1 break" in text
    assert "torch.nn.functional.linear" in text
    assert "holds while" in text


def test_checks_of_data_are_shown():
    def program(x):
        assert (x > 0).all()
        return x.log()

    explanation = stagefold.explain(program, torch.ones(2))
    assert explanation.breaks == ()
    assert f"runs plain if these raise (1): {__file__}:{program.__code__.co_firstlineno + 1}" in str(explanation)


def test_a_whole_graph_has_no_breaks():
    explanation = stagefold.explain(lambda x, scale: x.sin() * scale, torch.ones(2), 3)
    assert len(explanation.graphs) == 1
    assert explanation.breaks == explanation.plain == explanation.recompiled == ()
    assert "scale == 3" in str(explanation)


def test_what_was_compiled_is_explained_as_what_it_was_made_from():
    model = Model()
    x = torch.ones(2, 3)
    assert len(stagefold.explain(stagefold.compile(model), x).breaks) == 1
    compiled = stagefold.compile(lambda x: x.cos() + 1)
    assert len(stagefold.explain(compiled, x).graphs) == 1


def test_recompiles_and_what_runs_plain_are_told():
    def pieces(x):
        yield locals()["x"] + 1

    def f(x):
        def step(y, n):
            torch.get_rng_state()
            return y * n

        return step(x, 1) + step(x, 2)

    assert stagefold.explain(f, torch.ones(2)).breaks
    (error,) = stagefold.explain(pieces, torch.ones(2)).plain
    assert error.code == "BC007"


def test_numbers_of_the_call_are_no_break():
    generator = random.Random(3)

    def program(x):
        return x * generator.random() + x.max().item()

    explanation = stagefold.explain(program, torch.ones(2))
    assert (len(explanation.graphs), explanation.breaks) == (1, ())
