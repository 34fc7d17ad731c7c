"""torch's own databases of autograd functions and of custom operators, compiled and compared with eager."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's databases import it")

from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.utils._pytree import tree_leaves, tree_map

import stagefold
from bytecap import optimize
from bytecap.events import Captured, CaptureWarning
from stagefold import StageError
from stagefold.backend import StagefoldBackend
from stagefold.options import parse_options

DATABASE = {info.name: info for info in (*autograd_function_db, *custom_op_db)}
REFUSED = {
    "NumpyExpMarkDirtyAutogradFunction": "BC002",  # NumPy writes into an array that is given by position
    "NumpyCubeNotComposableAutogradFunction": "BC002",  # an array is a result of the function
    "NumpySortAutogradFunction": "BC002",  # of equal numbers NumPy and torch sort either one first
    "SelectAutogradFunction": "AG007",  # with gradients: the result is a view of an input
    "SelectGenVmapAutogradFunction": "AG007",
    "ForwardHasDefaultArgsAutogradFunction": "AG007",
}


def clone(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def run(function: Any, sample: Any) -> tuple[list[Any], list[Any]]:
    """The results, and the inputs behind the call with their gradients."""
    args, kwargs = tree_map(clone, ((sample.input, *sample.args), sample.kwargs))
    results = tree_leaves(function(*args, **kwargs))
    tracked = [result for result in results if isinstance(result, torch.Tensor) and result.requires_grad]
    if tracked:
        sum(result.abs().sum() for result in tracked).backward()  # type: ignore[union-attr]
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    plain = [result.detach() if isinstance(result, torch.Tensor) else result for result in results]
    return plain, [(leaf.detach(), leaf.grad) for leaf in given]


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("name", DATABASE)
def test_agrees_with_eager(name: str, requires_grad: bool) -> None:
    info = DATABASE[name]
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=requires_grad):
        expected = run(info.op, sample)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)
            torch.testing.assert_close(run(stagefold.compile(info.op), sample), expected)
        whole = stagefold.compile(lambda *args, **kwargs: info.op(*args, **kwargs), fullgraph=True)
        code = REFUSED.get(name)
        if code == "BC002" or (code is not None and requires_grad):
            with pytest.raises(StageError, match=code):
                run(whole, sample)
        else:
            torch.testing.assert_close(run(whole, sample), expected)


def captured(function: Any) -> tuple[Any, list[list[str]]]:
    """A function compiled, and the calls of each of its graphs, as they are made."""
    graphs: list[list[str]] = []

    def note(event: Any) -> None:
        if isinstance(event, Captured):
            graphs.append([node.target for node in event.capture.graph.nodes])

    return optimize(function, StagefoldBackend(parse_options(None, None)), on_event=note), graphs


def test_the_graph_ends_in_front_of_a_view_of_an_operand() -> None:
    """A function that returns a view with a gradient of its own runs by itself; what stands around it is compiled."""
    select = DATABASE["SelectAutogradFunction"].op

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y, select(y, 0), x.exp() * 2

    x = torch.rand(4, 3, requires_grad=True)
    compiled, graphs = captured(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        found = compiled(x)
    torch.testing.assert_close(found, program(x))
    assert found[1]._is_view()
    assert graphs[1:] == [["torch.Tensor.sin"], ["torch.Tensor.exp", "operator.mul"]]


def decided(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.ops.stagefold_tests.positive_rows(x)
    return kept * 2 + kept.shape[0], kept.sum(0)


@pytest.mark.parametrize("make_size", ["new_dynamic_size", "create_unbacked_symint"])
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the old name
def test_sizes_that_a_custom_operator_makes_are_symbols(make_size: str) -> None:
    with torch.library._scoped_library("stagefold_tests", "DEF") as library:
        library.define("positive_rows(Tensor x) -> Tensor")
        library.impl("positive_rows", lambda x: x[x[:, 0] > 0].clone(), "CPU")

        @torch.library.register_fake("stagefold_tests::positive_rows", lib=library)
        def _(x: torch.Tensor) -> torch.Tensor:
            return x.new_empty(getattr(torch.library.get_ctx(), make_size)(), x.shape[1])

        compiled, graphs = captured(decided)
        for rows in (5, 2, 1, 0):
            x = torch.full((6, 3), -1.0)
            x[:rows] = torch.rand(rows, 3) + 0.1
            torch.testing.assert_close(compiled(x), decided(x))
        assert len(graphs) == 1


def test_bounds_of_such_a_size_are_numbers() -> None:
    with torch.library._scoped_library("stagefold_tests", "DEF") as library:
        library.define("bad(Tensor x) -> Tensor")
        library.impl("bad", lambda x: x.clone(), "CPU")

        @torch.library.register_fake("stagefold_tests::bad", lib=library)
        def _(x: torch.Tensor) -> torch.Tensor:
            return x.new_empty(torch.library.get_ctx().new_dynamic_size(min=-1))

        compiled = stagefold.compile(lambda x: torch.ops.stagefold_tests.bad(x), fullgraph=True)
        with pytest.raises((StageError, ValueError), match="no size is negative"):
            compiled(torch.rand(3))
