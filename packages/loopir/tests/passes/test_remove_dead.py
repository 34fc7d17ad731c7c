"""remove_dead: nothing is computed that nobody needs."""

from __future__ import annotations

from loopir.testing.graphs import externs, kernels, lowered


def test_unused_results_are_not_computed() -> None:
    text = """\
input %x: f32[8, 40]
%v: f32[8], %m: f32[8] = prims.var_mean(%x, [1], 0)
%unused: f32[8] = prims.exp(%v)
%n: f32[40, 40] = aten.mm.default(%x, %x)
return %m
"""
    graph = lowered(text)
    (kernel,) = kernels(graph)
    assert externs(graph) == []
    assert [s.buffer for section in kernel.sections for s in section.statements if type(s).__name__ == "Store"] == ["m"]
    assert {buffer.name for buffer in graph.buffers} == {"x", "m"}


def test_inputs_stay_though_nothing_reads_them() -> None:
    graph = lowered("input %x: f32[2]\ninput %y: f32[2]\n%z: f32[2] = prims.neg(%x)\nreturn %z\n")
    assert graph.inputs == ("x", "y")
    assert {buffer.name for buffer in graph.buffers} == {"x", "y", "z"}


def test_kernels_over_nothing_are_gone() -> None:
    graph = lowered(
        "input %x: f32[0, 4]\n%y: f32[0, 4] = prims.neg(%x)\n%s: f32[4] = prims.sum(%y, [0])\nreturn %y, %s\n"
    )
    assert [kernel.origins for kernel in kernels(graph)] == [("s",)]


def test_random_calls_stay_though_nothing_reads_them() -> None:
    graph = lowered('input %x: f32[4]\n%r: f32[4] = aten.rand_like.default(%x) with effect="draws"\nreturn %x\n')
    assert [extern.target for extern in externs(graph)] == ["aten.rand_like.default"]


def test_results_of_a_call_that_nothing_reads_have_no_name() -> None:
    text = """\
input %x: f32[8, 40]
%v: f32[8], %i: i64[8] = aten.mode.default(%x)
return %i
"""
    graph = lowered(text)
    assert [extern.results for extern in externs(graph)] == [("", "i")]
    assert {buffer.name for buffer in graph.buffers} == {"x", "i"}


def test_an_index_that_does_not_matter_is_checked() -> None:
    """Rows of a tensor of zeros; what reads them has no use for where they are."""
    text = """\
input %i: i64[6]
%z: f32[5] = prims.full([5], 0.0, float32)
%y: f32[6] = prims.index(%z, [%i])
return %y
"""
    (kernel,) = kernels(lowered(text))
    assert [s.op for section in kernel.sections for s in section.statements if type(s).__name__ == "Compute"] == [
        "wrap_index"
    ]


def test_an_index_of_what_nobody_reads_is_not() -> None:
    text = """\
input %x: f32[5]
input %i: i64[6]
%y: f32[6] = prims.index(%x, [%i])
%z: f32[6] = prims.exp(%y)
return %x
"""
    assert kernels(lowered(text)) == []


def test_assertions_stay() -> None:
    graph = lowered('input %x: b8[]\naten._assert_async.default(%x) with effect="acts"\nreturn %x\n')
    assert [extern.target for extern in externs(graph)] == ["aten._assert_async.default"]
