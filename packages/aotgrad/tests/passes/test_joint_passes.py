"""Each pass: a graph before and after, what it leaves alone, and that every subset of passes keeps the meaning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from msgspec.structs import replace

from aotgrad import AotGrad, Joint, Options
from aotgrad.errors import BackwardFailed, NoInverse, UnsupportedOutput
from aotgrad.passes import (
    DEFAULT_PASSES,
    NarrowPositions,
    RemoveDeadCode,
    SeparateResults,
)
from aotgrad.testing import check_against_eager, eager_refuses_backward
from aotgrad.testing.strategies import programs
from aotgrad.testing.torch_function import capture_by_torch_function
from stagewire.capture import Capture
from stagewire.grad import Binding, BoundInput, Tangent
from stagewire.graph import Ref
from stagewire.parser import parse_graph
from stagewire.printer import print_graph
from stagewire.types import contiguous


def joint(text: str, results: int = 1) -> Joint:
    """A joint graph from its printed form; outputs behind the results are gradients."""
    graph = parse_graph(text.strip())
    kind = graph.inputs[0].type if graph.inputs else contiguous("float32", ())
    gradients = tuple(BoundInput(f"g{number}", kind) for number in range(len(graph.outputs) - results))
    return Joint(graph, Binding(inputs=gradients, outputs=(), tangents=(Tangent(0, kind),) if gradients else ()))


def after(run_pass, text: str, results: int = 1) -> str:
    return print_graph(run_pass(joint(text, results)).graph)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def assert_becomes(run_pass, before: str, expected: str, results: int = 1) -> None:
    assert lines(after(run_pass, before, results)) == lines(expected)


POOLED = """
input %x: f32[2, 3, 64, 64]@cuda:0
input %g: f32[2, 3, 32, 32]@cuda:0
%y: f32[2, 3, 32, 32]@cuda:0, %at: i64[2, 3, 32, 32]@cuda:0 = aten.max_pool2d_with_indices.default(%x, [2, 2])
%d: f32[2, 3, 64, 64]@cuda:0 = aten.max_pool2d_with_indices_backward.default(%g, %x, [2, 2], [2, 2], [0, 0], [1, 1], False, %at)
return %y, %d
"""  # noqa: E501


def pooled(text: str) -> Joint:
    """The printed form says no phases."""
    found = joint(text)
    *before, last = found.graph.nodes
    return found.with_graph(replace(found.graph, nodes=(*before, replace(last, phase="backward"))))


def targets(graph) -> list[str]:
    return [node.target.split(".")[1] for node in graph.nodes]


@pytest.mark.parametrize(("side", "dtype"), [(64, "int16"), (181, "int16"), (182, "int32")])
def test_positions_of_a_pool_go_to_the_backward_in_few_bytes(side: int, dtype: str) -> None:
    text = POOLED.replace("64, 64", f"{side}, {side}").replace("32, 32", f"{side // 2}, {side // 2}")
    before = pooled(text)
    found = NarrowPositions()(before).graph
    assert targets(found) == ["max_pool2d_with_indices", "_to_copy", "_to_copy", "max_pool2d_with_indices_backward"]
    assert [node.phase for node in found.nodes] == ["forward", "forward", "backward", "backward"]
    assert [node.results[0].type.dtype for node in found.nodes[1:3]] == [dtype, "int64"]
    assert found.nodes[3].args[-1] == Ref(found.nodes[2].results[0].name)


@pytest.mark.parametrize("change", [("@cuda:0", ""), ("return %y", "return %y, %at"), ("_with_indices", "")])
def test_positions_stay_wide_on_the_cpu_and_for_the_caller(change: tuple[str, str]) -> None:
    before = pooled(POOLED.replace(*change))
    assert NarrowPositions()(before) is before


def test_dead_code_goes_and_random_numbers_stay() -> None:
    assert_becomes(
        RemoveDeadCode(),
        """
        input %x: f32[2]
        %a: f32[2] = aten.sin.default(%x)
        %b: f32[2] = aten.cos.default(%a)
        %r: f32[2] = aten.bernoulli.p(%x, 0.5) with effect="draws"
        %c: f32[2] = aten.exp.default(%x)
        return %c
        """,
        """
        input %x: f32[2]
        %r: f32[2] = aten.bernoulli.p(%x, 0.5) with effect="draws"
        %c: f32[2] = aten.exp.default(%x)
        return %c
        """,
    )


def test_results_get_memory_of_their_own() -> None:
    assert_becomes(
        SeparateResults(),
        """
        input %x: f32[2, 2]
        %a: f32[2, 2] = aten.sin.default(%x)
        %b: f32[2, 2]{1, 2} = aten.t.default(%a)
        %c: f32[2, 1]{2, 1} = aten.slice.Tensor(%a, 1, 0, 1)
        return %a, %a, %b, %x
        """,
        """
        input %x: f32[2, 2]
        %a: f32[2, 2] = aten.sin.default(%x)
        %b: f32[2, 2]{1, 2} = aten.t.default(%a)
        %c: f32[2, 1]{2, 1} = aten.slice.Tensor(%a, 1, 0, 1)
        %a_copy: f32[2, 2] = aten.clone.default(%a, memory_format=memory_format(contiguous_format))
        %b_copy: f32[2, 2]{1, 2} = aten.clone.default(%b)
        %x_copy: f32[2, 2] = aten.clone.default(%x, memory_format=memory_format(contiguous_format))
        return %a, %a_copy, %b_copy, %x_copy
        """,
        results=4,
    )


def test_results_with_gaps_keep_their_strides() -> None:
    printed = after(
        SeparateResults(),
        """
        input %x: f32[2, 2]
        %a: f32[2, 2] = aten.sin.default(%x)
        %c: f32[2, 1]{2, 1} = aten.slice.Tensor(%a, 1, 0, 1)
        %d: f32[2]{2} = aten.select.int(%a, 1, 0)
        return %a, %d
        """,
        results=2,
    )
    assert "aten.empty_strided.default([2], [2]" in printed
    assert "%d_copy: f32[2]{2} = aten.copy.default(%d_copy_memory, %d)" in printed


def test_a_result_that_repeats_elements_is_viewed_again() -> None:
    """No op makes such memory: what a copy into it would state as its strides is not what it gives."""
    assert_becomes(
        SeparateResults(),
        """
        input %x: f32[2, 2]
        %a: f32[2, 2] = aten.sin.default(%x)
        %e: f32[3, 2, 2]{0, 2, 1} = aten.expand.default(%a, [3, 2, 2])
        %t: f32[2, 2, 3]{1, 2, 0} = aten.permute.default(%e, [2, 1, 0])
        return %a, %t
        """,
        """
        input %x: f32[2, 2]
        %a: f32[2, 2] = aten.sin.default(%x)
        %e: f32[3, 2, 2]{0, 2, 1} = aten.expand.default(%a, [3, 2, 2])
        %t: f32[2, 2, 3]{1, 2, 0} = aten.permute.default(%e, [2, 1, 0])
        %a_copy: f32[2, 2] = aten.clone.default(%a, memory_format=memory_format(contiguous_format))
        %e_copy: f32[3, 2, 2]{0, 2, 1} = aten.expand.default(%a_copy, [3, 2, 2])
        %t_copy: f32[2, 2, 3]{1, 2, 0} = aten.permute.default(%e_copy, [2, 1, 0])
        return %a, %t_copy
        """,
        results=2,
    )


VIEWS = [lambda x: x.expand(2, 3, 4), lambda x: x.unfold(1, 3, 1), lambda x: x.expand(2, 3, 4)[1].t()]


@pytest.mark.parametrize("view", VIEWS)
def test_equal_results_of_which_one_repeats_its_elements(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    inputs = [torch.randn(3, 4, requires_grad=True)]
    capture, inputs = capture_by_torch_function(lambda x: (x - 1, view(x - 1)), inputs)
    check_against_eager(capture, list(inputs))


def test_separate_results_are_left_alone() -> None:
    before = joint("input %x: f32[2]\n%a: f32[2] = aten.sin.default(%x)\nreturn %a")
    assert SeparateResults()(before) is before


@pytest.mark.parametrize("run_pass", DEFAULT_PASSES, ids=lambda p: type(p).__name__)
@settings(max_examples=15, deadline=None)
@given(drawn=programs())
def test_passes_are_idempotent(run_pass, drawn: tuple[Capture, list[torch.Tensor]]) -> None:
    try:
        once = run_pass(AotGrad().joint(drawn[0], Options(passes=())))
    except (BackwardFailed, NoInverse, UnsupportedOutput):
        return
    assert run_pass(once).graph == once.graph


SUBSETS = [(SeparateResults(),), (RemoveDeadCode(), SeparateResults())]


@pytest.mark.parametrize("passes", SUBSETS, ids=lambda passes: "-".join(type(p).__name__ for p in passes))
@settings(max_examples=10, deadline=None)
@given(drawn=programs())
def test_any_passes_keep_the_meaning(passes, drawn: tuple[Capture, list[torch.Tensor]]) -> None:
    capture, inputs = drawn
    assume(not eager_refuses_backward(capture, inputs))
    try:
        AotGrad().run(capture)
    except (NoInverse, UnsupportedOutput):
        assume(False)
    check_against_eager(capture, inputs, Options(passes=passes))


@pytest.mark.parametrize(
    ("call", "type_"),
    [
        ("aten.index.Tensor(%x, [None, %i])", "f32[5, 3]"),
        ("aten.index_select.default(%x, -1, %i)", "f32[5, 3]"),
        ("aten.index_fill.int_Scalar(%x, 0, %i, 1.0)", "f32[5, 4]"),
        ("aten.take.default(%x, %i)", "f32[3]"),
        ("aten.embedding.default(%x, %i)", "f32[3, 4]"),
        ("aten.binary_cross_entropy.default(%x, %x)", "f32[]"),
        ("aten.cholesky.default(%x)", "f32[5, 4]"),
    ],
)
@pytest.mark.parametrize(
    "use", ["%y", "aten.neg.default(%x)", "aten.zeros_like.default(%y)", "aten.new_zeros.default(%y, [2])"]
)
def test_what_may_raise_stays_where_nobody_needs_its_data(call: str, type_: str, use: str) -> None:
    text = f"""
input %x: f32[5, 4]
input %i: i64[3]
%y: {type_} = {call}
%z: {type_} = {use}
return %z
"""
    if use == "%y":
        text = text.replace(f"%z: {type_} = %y\n", "").replace("%z", "%y")
    first, *_ = RemoveDeadCode()(joint(text)).graph.nodes
    assert first.target == call.partition("(")[0]
    assert first.effect == (None if use == "%y" else "acts")


def test_an_unused_division_of_integers_stays() -> None:
    text = """
input %x: i64[5]
input %n: f32[5]
%y: i64[5] = aten.floor_divide.default(%x, %x)
%w: f32[5] = aten.div.Tensor(%n, %x)
%z: i64[5] = aten.remainder.Scalar(%x, 3)
%u: i64[5] = aten.remainder.Scalar(%x, 0)
return %x
"""
    assert targets(RemoveDeadCode()(joint(text)).graph) == ["floor_divide", "remainder"]


@pytest.mark.parametrize("device", ["", "@cuda:0"])
def test_an_error_is_raised_once_and_on_the_cpu_alone(device: str) -> None:
    """Two unused calls, one that is used, and one like it; masks are never out of range."""
    text = f"""
input %x: f32[5, 4]{device}
input %i: i64[3]{device}
input %m: b8[5]{device}
%a: f32[3, 4]{device} = aten.index.Tensor(%x, [%i])
%b: f32[3, 4]{device} = aten.index.Tensor(%x, [%i])
%c: f32[5, 4]{device} = aten.index_put.default(%x, [%m], %x)
%d: f32[3, 4]{device} = aten.exp.default(%a)
return OUTPUT
"""
    used = RemoveDeadCode()(joint(text.replace("OUTPUT", "%d"))).graph
    assert targets(used) == ["index", "exp"]
    unused = RemoveDeadCode()(joint(text.replace("OUTPUT", "%x"))).graph
    assert targets(unused) == ([] if device else ["index"])


def test_what_the_backward_does_not_need_is_not_checked_again() -> None:
    found = joint("input %x: f32[5]\ninput %i: i64[3]\n%y: f32[3] = aten.index.Tensor(%x, [%i])\nreturn %x\n")
    (node,) = found.graph.nodes
    found = found.with_graph(replace(found.graph, nodes=(replace(node, phase="backward"),)))
    assert RemoveDeadCode()(found).graph.nodes == ()


@pytest.mark.parametrize(("last", "calls"), [(5, 0), (6, 1)])
def test_what_literals_decide_is_looked_at_at_once(last: int, calls: int) -> None:
    text = f"""
input %x: f32[5, 4]
%r: i64[{last}] = aten.arange.default({last})
%i: i64[{last}] = aten.mul.Tensor(%r, 1)
%y: f32[{last}, 4] = aten.index_select.default(%x, 0, %i)
return %x
"""
    assert targets(RemoveDeadCode()(joint(text)).graph).count("index_select") == calls


@pytest.mark.parametrize(
    ("function", "target"),
    [(torch.linalg.svdvals, "aten._linalg_svd.default"), (torch.linalg.eigvalsh, "aten._linalg_eigh.default")],
)
def test_vectors_that_nobody_uses_are_not_computed(function, target) -> None:
    for requires_grad in (False, True):
        capture, inputs = capture_by_torch_function(function, [torch.randn(3, 4, 4, requires_grad=requires_grad)])
        (node,) = [node for node in AotGrad().run(capture).joint.nodes if node.target == target]
        assert (False in node.args[2:]) is not requires_grad
        check_against_eager(capture, inputs)
