"""recompute_locals and merge_scratch: buffers that one kernel alone uses."""

from __future__ import annotations

from loopir.pipeline import KERNEL_PASSES, PASSES
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import SOFTMAX, document, kernels
from stagewire.loop import LoopGraph
from stagewire.verify import verify

RELU_BACKWARD = """\
input %x: f32[64, 300]
input %t: f32[64, 300]
%p: b8[64, 300] = prims.le(%x, 0.0)
%g: f32[64, 300] = prims.where(%p, 0.0, %t)
%s: f32[64] = prims.sum(%g, [1])
%h: f32[64, 300] = prims.mul(%g, %x)
%u: f32[64] = prims.sum(%h, [1])
%ss: f32[64, 300] = prims.broadcast_in_dim(%s, [64, 300], [0])
%us: f32[64, 300] = prims.broadcast_in_dim(%u, [64, 300], [0])
%a: f32[64, 300] = prims.sub(%g, %ss)
%b: f32[64, 300] = prims.mul(%g, %us)
%y: f32[64, 300] = prims.sub(%a, %b)
return %y
"""


def run(text: str, without: tuple[str, ...] = ()) -> LoopGraph:
    passes = tuple(p for p in PASSES if p.name not in without)
    kernel_passes = tuple(p for p in KERNEL_PASSES if p.name not in without)
    loop = LoopIR().run(document(text), Options(passes=passes, kernel_passes=kernel_passes))
    verify(loop)
    return loop.forward


def stores(graph: LoopGraph) -> list[str]:
    return [s.buffer for k in kernels(graph) for section in k.sections for s in section.statements
            if type(s).__name__ == "Store"]  # fmt: skip


def test_a_cheap_local_is_computed_again() -> None:
    assert stores(run(RELU_BACKWARD, without=("recompute_locals", "merge_scratch"))) == ["g", "y"]
    graph = run(RELU_BACKWARD)
    assert stores(graph) == ["y"]
    assert ("g",) in [d.subjects for d in graph.decisions if d.reason.startswith("cheap to compute again")]


def test_a_dear_local_is_kept_in_the_result() -> None:
    assert stores(run(SOFTMAX, without=("merge_scratch",))) == ["e", "y"]
    graph = run(SOFTMAX)
    assert stores(graph) == ["y", "y"]
    assert [buffer.name for buffer in graph.buffers] == ["x", "y"]


def test_a_local_of_another_dtype_keeps_its_memory() -> None:
    text = SOFTMAX.replace("%y: f32[16, 100] = prims.div(%e, %sums)\nreturn %y", """\
%w: f32[16, 100] = prims.div(%e, %sums)
%y: bf16[16, 100] = prims.convert_element_type(%w, dtype(bfloat16))
return %y""")  # fmt: skip
    assert stores(run(text)) == ["e", "y"]


def test_what_is_returned_is_not_scratch() -> None:
    assert stores(run(SOFTMAX.replace("return %y", "return %y, %e"))) == ["e", "y"]
