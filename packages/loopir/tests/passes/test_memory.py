"""choose_layouts, alias_views, plan_memory: where buffers lie, and when they die."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loopir.layout import densified, is_dense
from loopir.passes.plan_memory import may_share
from loopir.pipeline import UNFUSED
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import ATTENTION, document, externs, kernels
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Free,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Store,
    Term,
    ValueAtom,
)
from stagewire.types import TensorType
from stagewire.verify import verify


def run(text: str) -> LoopGraph:
    loop = LoopIR().run(document(text))
    verify(loop)
    return loop.forward


def buffers(graph: LoopGraph) -> dict[str, Buffer]:
    return {buffer.name: buffer for buffer in graph.buffers}


def test_operands_of_externs_have_the_stated_strides() -> None:
    found = buffers(run(ATTENTION))
    assert found["q"].type.stride == (128, 16, 1)
    assert (found["kt"].type.stride, found["kt"].type.storage_offset, found["kt"].base) == ((128, 1, 16), 8, "qk")


def test_a_window_of_other_strides_is_copied() -> None:
    text = ATTENTION.replace("%kt: f32[2, 8, 8]{128, 1, 16}", "%kt: f32[2, 8, 8]")
    graph = run(text)
    assert buffers(graph)["kt"].role == "kernel"
    assert [kernel.origins for kernel in kernels(graph)] == [("kt",), ("scaled",)]


def test_intermediates_are_dense() -> None:
    type = TensorType("float32", (4, 1, 6), (0, 7, 2))
    assert not is_dense(type)
    assert densified(type) == TensorType("float32", (4, 1, 6), (6, 6, 1))
    assert is_dense(TensorType("float32", (4, 6), (1, 4)))
    assert is_dense(TensorType("float32", (0, 6), (77, 5)))


def test_what_a_kernel_writes_for_an_extern_has_no_gaps() -> None:
    text = """\
input %x: f32[4, 3, 8]
input %w: f32[8, 5]
%n: f32[4, 3, 8] = prims.neg(%x)
%p: f32[4, 1, 8]{24, 8, 1} = prims.slice(%n, [0, 2, 0], [4, 3, 8], [1, 1, 1])
%s: f32[4, 8]{24, 1} = prims.reshape(%p, [4, 8])
%y: f32[4, 5] = aten.mm.default(%s, %w)
return %y
"""
    gaps = run(text)
    assert (buffers(gaps)["s"].type.stride, buffers(gaps)["s"].role) == ((8, 1), "kernel")
    # An output has the strides that eager gives it; a window on what is there anyway has those of the window.
    assert buffers(run(text.replace("return %y", "return %y, %s")))["s"].type.stride == (24, 1)
    window = text.replace("prims.neg(%x)", "aten.cumsum.default(%x, 0)")
    assert (buffers(run(window))["s"].type.stride, buffers(run(window))["s"].role) == ((24, 1), "view")


def test_an_output_shares_memory_with_no_input_and_no_other_output() -> None:
    text = "input %x: f32[4, 6]\n%a: f32[4, 6] = prims.neg(%x)\n%b: f32[6, 4]{1, 6} = prims.permute(%a, [1, 0])\n"
    shared = run(text + "%c: f32[6, 4]{1, 6} = prims.permute(%x, [1, 0])\nreturn %a, %b, %c\n")
    assert {name: buffer.role for name, buffer in buffers(shared).items() if name in "abc"} == {
        "a": "kernel", "b": "kernel", "c": "kernel",
    }  # fmt: skip
    alone = buffers(run(text + "return %b\n"))
    assert "a" not in alone
    assert alone["b"].role == "kernel"


def test_a_small_piece_does_not_keep_a_large_buffer() -> None:
    text = """\
input %x: f32[64, 64]
%m: f32[64, 64] = aten.mm.default(%x, %x)
%y: f32[4, 64] = prims.slice(%m, [0, 0], [4, 64], [1, 1])
return %y
"""
    graph = run(text)
    assert buffers(graph)["y"].role == "kernel"
    assert "the output would keep a much larger buffer alive" in {d.reason for d in graph.decisions}


def test_memory_is_freed_after_its_last_use() -> None:
    text = """\
input %x: f32[8, 8]
%m: f32[8, 8] = aten.mm.default(%x, %x)
%n: f32[8, 8] = aten.mm.default(%m, %x)
%o: f32[8, 8] = aten.mm.default(%n, %x)
return %o
"""
    steps = run(text).steps
    assert [step.buffer if isinstance(step, Free) else step.results[0] for step in steps] == ["m", "n", "m", "o", "n"]


def test_a_result_takes_over_memory_in_place() -> None:
    text = "input %x: f32[8, 8]\n%m: f32[8, 8] = aten.mm.default(%x, %x)\n%y: f32[8, 8] = prims.tanh(%m)\nreturn %y\n"
    graph = run(text)
    assert buffers(graph)["y"].reuse == "m"
    assert not any(isinstance(step, Free) for step in graph.steps)


STEPS = {
    "f32": ("f32 = prims.exp({})", "f32 = prims.mul({}, 2.0)", "i32 = prims.convert_element_type({}, dtype(int32))"),
    "i32": ("i32 = prims.neg({})", "f32 = prims.convert_element_type({}, dtype(float32))"),
}


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(1, 5), max_size=3), st.sampled_from(("", "@cuda:0"))
)
def test_a_chain_of_kernels_takes_the_memory_of_one_result(steps: list[int], shape: list[int], device: str) -> None:
    """Each is computed where the one before is, whatever its dtype, as long as that has items of one size."""
    kind, text = "f32", f"input %x0: f32{shape}{device}\n"
    for number, step in enumerate(steps):
        found, _, call = STEPS[kind][step % len(STEPS[kind])].partition(" = ")
        text += f"%x{number + 1}: {found}{shape}{device} = {call.format(f'%x{number}')}\n"
        kind = found
    graph = LoopIR().run(document(f"{text}return %x{len(steps)}\n"), Options(passes=UNFUSED)).forward
    assert len(kernels(graph)) == len(steps)
    assert sum(buffer.role == "kernel" and buffer.reuse is None for buffer in graph.buffers) == 1


def test_memory_of_a_gpu_does_not_wait_for_a_later_buffer() -> None:
    text = """\
input %x: f32[8, 8]@cuda:0
input %w: f32[8, 4]@cuda:0
input %v: f32[4, 8]@cuda:0
%a: f32[8, 8]@cuda:0 = prims.tanh(%x)
%m: f32[8, 4]@cuda:0 = aten.mm.default(%a, %w)
%n: f32[8, 8]@cuda:0 = aten.mm.default(%m, %v)
%t: f32[8, 8]{1, 8}@cuda:0 = prims.permute(%n, [1, 0])
%y: f32[8, 8]@cuda:0 = prims.add(%n, %t)
%o: f32[8, 8]@cuda:0 = aten.mm.default(%y, %x)
return %o
"""
    assert buffers(run(text.replace("@cuda:0", "")))["y"].reuse == "a"
    assert buffers(run(text))["y"].reuse is None
    at_once = text.replace("mm.default(%m, %v)", "mm.default(%a, %x)")
    assert buffers(run(at_once))["y"].reuse == "a"


def test_a_transposed_read_is_not_in_place() -> None:
    text = """\
input %x: f32[8, 8]
%m: f32[8, 8] = aten.mm.default(%x, %x)
%t: f32[8, 8]{1, 8} = prims.permute(%m, [1, 0])
%y: f32[8, 8] = prims.add(%m, %t)
return %y
"""
    assert buffers(run(text))["y"].reuse is None


def test_what_a_view_of_aten_may_share_is_not_taken_over() -> None:
    text = """\
input %x: f32[8, 8]
%m: f32[8, 8] = prims.tanh(%x)
%v: f32[8, 8] = aten.alias.default(%m) with effect="aliases"
%a: f32[8, 8] = prims.exp(%x)
%b: f32[8, 8] = aten.mm.default(%a, %v)
return %b
"""
    graph = run(text)
    assert [buffer.reuse for buffer in graph.buffers if buffer.name in ("a", "v")] == [None, None]
    assert [extern.target for extern in externs(graph)] == ["aten.alias.default", "aten.mm.default"]


def test_memory_that_an_operator_of_a_library_was_given_is_not_taken_over() -> None:
    # wait_tensor gives its operand: what it gave is read where the result of the collective has ended.
    text = """\
input %x: f32[8, 8]
%m: f32[8, 8] = prims.tanh(%x)
%g: f32[8, 8] = _c10d_functional.all_reduce.default(%m, "sum", "0") with effect="acts"
%w: f32[8, 8] = _c10d_functional.wait_tensor.default(%g) with effect="acts"
%a: f32[8, 8] = prims.exp(%x)
%b: f32[8, 8] = aten.mm.default(%a, %w)
return %b
"""
    graph = run(text)
    assert {buffer.reuse for buffer in graph.buffers} == {None}
    assert any(Free("g") == step for step in graph.steps)


def test_a_view_of_a_copy_that_is_kept_is_a_window_on_the_copy() -> None:
    """The heads of an attention: copied once for the product, though the copy is returned (saved) too."""
    text = """\
input %x: f32[8, 24]
%m: f32[8, 24] = aten.mm.default(%x, %x)
%heads: f32[2, 4, 24] = prims.reshape(%m, [2, 4, 24])
%turned: f32[4, 2, 24]{24, 96, 1} = prims.permute(%heads, [1, 0, 2])
%kept: f32[4, 2, 24] = prims.clone(%turned)
%rows: f32[8, 24] = prims.reshape(%kept, [8, 24])
%n: f32[8, 24] = aten.mm.default(%rows, %x)
return %n, %kept
"""
    graph = run(text)
    assert [kernel.origins for kernel in kernels(graph)] == [("kept",)]
    assert (buffers(graph)["rows"].role, buffers(graph)["rows"].base) == ("view", "kept")


def stored_at(index: Index) -> Kernel:
    """y[index] = x[index] + 1 at 4 points i, which have read k[i]."""
    statements = (
        Load("k", "places", Index(0, (Term(1, AxisAtom("i")),)), "int64"),
        Load("v", "x", index, "float32"),
        Compute("w", "add", (Ref("v"), 1.0), "float32"),
        Store("y", index, Ref("w")),
    )
    return Kernel("kernel", (Axis("i", 4),), (Section((), statements),))


def test_points_that_share_an_element_are_not_in_place() -> None:
    """The second of two equal places would read what the first has stored."""
    assert may_share(stored_at(Index(0, (Term(1, AxisAtom("i")),))), "x", "y")
    assert not may_share(stored_at(Index(0, (Term(1, ValueAtom("k")),))), "x", "y")
