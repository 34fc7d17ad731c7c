"""fuse_nests: what joins a kernel, what does not, and the reason that is kept."""

from __future__ import annotations

import pytest

from loopir.passes.fuse_nests import FuseNests
from loopir.passes.merge_nests import Limits
from loopir.pipeline import PASSES
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import BATCH_NORM, LAYER_NORM, SOFTMAX, document, kernels, lowered
from stagewire.loop import LoopGraph
from stagewire.verify import verify


def with_fuser(text: str, fuse: FuseNests) -> LoopGraph:
    passes = tuple(fuse if p.name == "fuse_nests" else p for p in PASSES)
    loop = LoopIR().run(document(text), Options(passes=passes))
    verify(loop)
    return loop.forward


def refusals(graph: LoopGraph) -> set[str]:
    return {d.reason for d in graph.decisions if d.action == "refused"}


@pytest.mark.parametrize("text", [SOFTMAX, LAYER_NORM, BATCH_NORM])
def test_a_normalisation_is_one_kernel(text: str) -> None:
    assert len(kernels(lowered(text))) == 1


def test_two_reductions_over_the_same_rows_share_the_reading() -> None:
    text = (
        "input %x: f32[64, 300]\n%a: f32[64] = prims.sum(%x, [1])\n%b: f32[64] = prims.amax(%x, [1])\nreturn %a, %b\n"
    )
    graph = lowered(text)
    (kernel,) = kernels(graph)
    assert sum(type(s).__name__ == "Load" for section in kernel.sections for s in section.statements) == 1
    assert [d.reason for d in graph.decisions if d.action == "fused"] == ["read the same data"]
    assert len(kernels(with_fuser(text, FuseNests(least_bytes=1 << 30)))) == 2


def test_rows_and_columns_stay_apart() -> None:
    text = (
        "input %x: f32[64, 300]\n%a: f32[64] = prims.sum(%x, [1])\n%b: f32[300] = prims.sum(%x, [0])\nreturn %a, %b\n"
    )
    graph = lowered(text)
    assert len(kernels(graph)) == 2
    assert refusals(graph) == {"reductions over different outer axes"}


def test_an_extern_between_two_keeps_them_apart() -> None:
    text = """\
input %x: f32[32, 32]
%a: f32[32, 32] = prims.tanh(%x)
%m: f32[32, 32] = aten.mm.default(%a, %a)
%y: f32[32, 32] = prims.add(%m, %a)
return %y
"""
    graph = lowered(text)
    assert len(kernels(graph)) == 2
    assert refusals(graph) == {"another step lies between them"}


def test_a_long_single_row_stays_parallel() -> None:
    text = """\
input %x: f32[200000]
%s: f32[] = prims.sum(%x, [0])
%w: f32[200000] = prims.broadcast_in_dim(%s, [200000], [])
%y: f32[200000] = prims.div(%x, %w)
return %y
"""
    graph = lowered(text)
    assert len(kernels(graph)) == 2
    assert refusals(graph) == {"too few rows to spread over the machine"}


def test_a_split_axis_still_meets_its_whole() -> None:
    """The reduction runs over (4, 25), the store over the flattened 100."""
    text = """\
input %x: f32[64, 4, 25]
%s: f32[64] = prims.sum(%x, [1, 2])
%w: f32[64, 100] = prims.broadcast_in_dim(%s, [64, 100], [0])
%f: f32[64, 100] = prims.reshape(%x, [64, 100])
%y: f32[64, 100] = prims.div(%f, %w)
return %y
"""
    assert len(kernels(lowered(text))) == 1


def test_counters_share_a_kernel() -> None:
    text = "".join(f"input %n{k}: i64[]\n" for k in range(5))
    text += "".join(f"%m{k}: i64[] = prims.add(%n{k}, 1)\n" for k in range(5)) + "return %m0, %m1, %m2, %m3, %m4\n"
    assert len(kernels(lowered(text))) == 1


def test_an_accumulating_scatter_stays_alone_on_a_cpu() -> None:
    text = """\
input %i: i64[40]
input %g: f32[40, 64]
%z: f32[50, 64] = prims.full([50, 64], 0.0, dtype(float32))
%e: f32[40, 64] = prims.tanh(%g)
%t: f32[50, 64] = prims.index_put(%z, [%i, None], %e, True, False)
%s: f32[40] = prims.sum(%e, [1])
return %t, %s, %e
"""
    graph = lowered(text)
    (scatter,) = [
        k for k in kernels(graph) if any(getattr(s, "mode", "") == "atomic_add" for s in k.sections[0].statements)
    ]
    assert all(not section.axes for section in scatter.sections)


def test_kernels_stay_within_the_limits() -> None:
    lines = ["input %x: f32[64, 64]"]
    lines += [f"%s{n}: f32[64] = prims.sum(%x, [1])\n%t{n}: f32[64] = prims.add(%s{n}, {n})" for n in range(20)]
    text = "\n".join([*lines, "return " + ", ".join(f"%t{n}" for n in range(20))]) + "\n"
    graph = with_fuser(text, FuseNests(limits=Limits(buffers=8)))
    assert len(kernels(graph)) > 1
    for kernel in kernels(graph):
        assert len({s.buffer for section in kernel.sections for s in section.statements if hasattr(s, "buffer")}) <= 8


def test_nests_over_nothing_do_not_disturb() -> None:
    text = """\
input %x: f32[2, 1]
%y: f32[2, 1] = prims.tanh(%x)
%none: f32[0, 1] = prims.slice(%y, [0, 0], [0, 1], [1, 1])
%less: f32[0, 1] = prims.neg(%none)
return %y, %less
"""
    verify(LoopIR().run(document(text), Options(passes=(FuseNests(),), kernel_passes=())))


def test_columns_stay_parallel() -> None:
    """Of images whose channels are fastest, a program takes several channels: few programs would be left."""
    text = """\
input %x: f32[6272, 512]@cuda:0
%s: f32[512]@cuda:0 = prims.sum(%x, [0])
%w: f32[6272, 512]@cuda:0 = prims.broadcast_in_dim(%s, [6272, 512], [1])
%y: f32[6272, 512]@cuda:0 = prims.div(%x, %w)
return %y
"""
    assert [len(kernel.axes) for kernel in kernels(lowered(text))] == [2, 1, 2]
    few = lowered(text.replace("6272", "200"))
    assert [[axis.size for axis in kernel.axes] for kernel in kernels(few)] == [[512]]


def test_counters_share_a_kernel_on_each_device() -> None:
    devices = ("", "@cuda:0", "@cuda:1") * 2
    text = "".join(f"input %n{k}: i64[]{device}\n" for k, device in enumerate(devices))
    text += "".join(f"%m{k}: i64[]{device} = prims.add(%n{k}, 1)\n" for k, device in enumerate(devices))
    graph = lowered(text + "return " + ", ".join(f"%m{k}" for k in range(6)) + "\n")
    assert [kernel.origins for kernel in kernels(graph)] == [("m0", "m3"), ("m1", "m4"), ("m2", "m5")]


def test_a_kernel_runs_on_one_device() -> None:
    """One that reads a number on the CPU takes its value; what makes the number is another kernel."""
    text = """\
input %x: i64[10]
input %offset: i64[]
%seed: i64[] = prims.sum(%x, [0])
%u: f32[64]@cuda:0 = prims.philox_uniform(%seed, %offset, [64], 1024, 4, device(cuda:0))
%s: f32[]@cuda:0 = prims.sum(%u, [0])
return %s
"""
    graph = lowered(text)
    assert [kernel.origins for kernel in kernels(graph)] == [("seed",), ("s",)]
    assert refusals(graph) == {"results on cpu and cuda:0"}


def rows_of(matrices: int, use: str) -> str:
    """Products of matrices with one vector, on a GPU, and what is done with these."""
    text = "input %x: f32[512]@cuda:0\n%r: f32[32, 512]@cuda:0 = prims.broadcast_in_dim(%x, [32, 512], [1])\n"
    for n in range(matrices):
        text = f"input %w{n}: f32[32, 512]@cuda:0\n{text}%p{n}: f32[32, 512]@cuda:0 = prims.mul(%w{n}, %r)\n"
        text += f"%y{n}: f32[32]@cuda:0 = prims.sum(%p{n}, [1])\n"
    return text + use


GATED = "%g: f32[32]@cuda:0 = prims.exp(%y0)\n%z: f32[32]@cuda:0 = prims.mul(%g, %y1)\nreturn %z\n"


def test_what_has_grown_is_tried_again() -> None:
    """Two products share no rows, until one of them is one kernel with what reads both."""
    graph = lowered(rows_of(2, GATED))
    assert len(kernels(graph)) == 1
    assert refusals(graph) == {"reductions over different outer axes"}


def test_rows_of_matrices_that_do_not_meet_stay_apart() -> None:
    """Kernels that are alike share a launch (codegen's horizontal fusion), whatever their numbers of rows."""
    assert len(kernels(lowered(rows_of(2, "return %y0, %y1\n")))) == 2
