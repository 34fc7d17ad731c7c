"""What a callable back end is given: every node of a captured graph prints and runs as Python.

The programs of bytecap's tests and a model, with back ends that print the graph module, copy it, make its code anew,
and run it by `torch.fx.Interpreter` or as it is.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx

import stagefold
from bytecap import Options, optimize
from bytecap.testing.oracle import _compare, observe
from bytecap.testing.programs import Program, programs_below
from integration_tests.zoo import shrunken
from stagefold.adapters.fx import to_fx
from stagewire.capture import Capture

PROGRAMS = programs_below(Path(__file__).parents[1] / "packages" / "bytecap" / "tests")


def as_it_is(module: torch.fx.GraphModule) -> Callable[..., Any]:
    return module


def interpreted(module: torch.fx.GraphModule) -> Callable[..., Any]:
    return torch.fx.Interpreter(module).run


def copied(module: torch.fx.GraphModule) -> Callable[..., Any]:
    return copy.deepcopy(module)


def printed(module: torch.fx.GraphModule) -> None:
    """All ways in which a graph module is shown."""
    compile(module.code, "<graph>", "exec")
    module.print_readable(print_output=False)
    assert str(module.graph)
    assert all(node.format_node() for node in module.graph.nodes)
    module.graph.lint()
    module.recompile()


def check(program: Program, way: Callable[[torch.fx.GraphModule], Callable[..., Any]]) -> None:
    def backend(capture: Capture, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        module = to_fx(capture, inputs)
        printed(module)
        return way(module)

    function, _ = program.make()
    optimized = optimize(function, backend, options=Options(allow_empty=True), on_event=lambda event: None)
    for number in range(2):
        plain, arguments = program.make()
        torch.manual_seed(7)
        expected = observe(plain, arguments)
        _, arguments = program.make()
        torch.manual_seed(7)
        _compare(expected, observe(optimized, arguments), f"call {number}")


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_graph_module_prints_and_means_the_program(program):
    ways = (as_it_is, interpreted, copied)
    check(program, ways[PROGRAMS.index(program) % len(ways)])


def attributes(x: torch.Tensor) -> Any:
    z = torch.complex(x, x)
    return x.T, x.mT, x.H, x.data, x.real, z.real, z.imag, x.grad, x.shape, x.requires_grad, x.is_leaf


def written_attributes(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(2, 2)
    y.data = x * 2
    y.requires_grad = True
    return y


def named_like_a_keyword(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).random_(**{"from": 3, "to": 4}) + x


def several(x: torch.Tensor) -> Any:
    a, b = x.chunk(2)
    return a.max(0), torch.linalg.qr(b), torch.broadcast_tensors(a, b), x.unbind()


@pytest.mark.parametrize("function", [attributes, written_attributes, named_like_a_keyword, several])
def test_attributes_keywords_and_several_results(function):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    modules: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        printed(module)
        modules.append(module)
        return pickle.loads(pickle.dumps(module))

    compiled = stagefold.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    assert modules


@pytest.mark.filterwarnings("ignore")
def test_a_model_with_sparse_attention():
    torch.manual_seed(0)
    model = shrunken.build("BigBirdForMaskedLM").eval()
    inputs = shrunken.inputs_of(model)
    expected = model(**inputs)

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        printed(module)
        return interpreted(module)

    found = stagefold.compile(model, backend=backend)(**inputs)
    torch.testing.assert_close(found.logits, expected.logits)
