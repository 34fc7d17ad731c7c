"""inline_pointwise: what is recomputed, what is kept, and why."""

from __future__ import annotations

import pytest

from loopir.passes.choose_layouts import ChooseLayouts
from loopir.passes.inline_pointwise import InlinePointwise
from loopir.passes.remove_dead import RemoveDead
from loopir.pipeline import schedule_graph
from loopir.testing.graphs import GELU, SOFTMAX, document, kernels, lowered
from stagewire.loop import Load, LoopGraph


def inlined(text: str, inline: InlinePointwise = InlinePointwise()) -> LoopGraph:  # noqa: B008
    passes = (inline, RemoveDead(), ChooseLayouts())
    return schedule_graph(document(text).forward, passes=passes, kernel_passes=())


def reasons(graph: LoopGraph, action: str) -> dict[str, str]:
    return {d.subjects[0]: d.reason for d in graph.decisions if d.action == action}


def test_a_chain_becomes_one_expression() -> None:
    graph = inlined(GELU)
    (kernel,) = kernels(graph)
    assert [type(s).__name__ for s in kernel.sections[0].statements].count("Load") == 1
    assert set(reasons(graph, "inlined")) == {"half", "scaled", "erf", "one"}


def test_what_is_dear_and_used_twice_is_kept() -> None:
    graph = inlined(SOFTMAX)
    assert reasons(graph, "materialised") == {"e": "cost 11 at 2 uses of every element"}
    assert [kernel.origins for kernel in kernels(graph)] == [("top",), ("e",), ("sum",), ("y",)]


def test_a_gpu_hides_arithmetic() -> None:
    on_gpu = SOFTMAX.replace("f32[16, 100]", "f32[16, 100]@cuda:0").replace("f32[16]", "f32[16]@cuda:0")
    assert reasons(inlined(on_gpu), "materialised") == {}


ANGLES = """\
input %x: bf16[8, 16, 512, 64]@cuda:0
input %angles: f32[512, 64]@cuda:0
%cos: f32[512, 64]@cuda:0 = prims.cos(%angles)
%narrow: bf16[512, 64]@cuda:0 = prims.convert_element_type(%cos, bfloat16)
%wide: bf16[8, 16, 512, 64]@cuda:0 = prims.broadcast_in_dim(%narrow, [8, 16, 512, 64], [2, 3])
%y: bf16[8, 16, 512, 64]@cuda:0 = prims.mul(%x, %wide)
return %y
"""


def test_a_small_table_that_is_read_over_and_over_is_computed_once() -> None:
    """The last buffer of those as small: what it is made of is computed for it alone."""
    graph = inlined(ANGLES)
    assert [kernel.origins for kernel in kernels(graph)] == [("narrow",), ("y",)]
    assert reasons(graph, "materialised") == {"narrow": "137330688 instructions for 128 uses of every element"}


def test_a_table_that_costs_less_than_a_launch_is_not() -> None:
    for text in (ANGLES.replace("8, 16, 512", "4, 8, 512"), ANGLES.replace("prims.cos", "prims.neg")):
        assert [kernel.origins for kernel in kernels(inlined(text))] == [("y",)]


def test_users_that_are_computed_again_count_as_often() -> None:
    """A softmax computes again what it is taken of: its maximum, the sum and the quotient."""
    table = ANGLES[: ANGLES.index("return")].replace("8, 16, 512", "4, 8, 512").replace("bf16", "f32")
    table = table.replace("%narrow", "%n").replace("prims.convert_element_type(%cos, bfloat16)", "prims.neg(%cos)")
    lines = ["%top: f32[4, 8, 512]@cuda:0 = prims.amax(%y, [3])"]
    lines += ["%tops: f32[4, 8, 512, 64]@cuda:0 = prims.broadcast_in_dim(%top, [4, 8, 512, 64], [0, 1, 2])"]
    lines += ["%moved: f32[4, 8, 512, 64]@cuda:0 = prims.sub(%y, %tops)"]
    lines += ["%e: f32[4, 8, 512, 64]@cuda:0 = prims.exp(%moved)", "%sum: f32[4, 8, 512]@cuda:0 = prims.sum(%e, [3])"]
    lines += ["%sums: f32[4, 8, 512, 64]@cuda:0 = prims.broadcast_in_dim(%sum, [4, 8, 512, 64], [0, 1, 2])"]
    lines += ["%z: f32[4, 8, 512, 64]@cuda:0 = prims.div(%e, %sums)", "return %z"]
    assert "n" in reasons(inlined(table + "\n".join(lines) + "\n"), "materialised")
    assert "n" not in reasons(inlined(table + "return %y\n"), "materialised")


def test_what_is_as_large_as_where_it_is_read_is_no_table() -> None:
    """However many read it: memory would be moved for each of them."""
    head = ANGLES[: ANGLES.index("%y:")]
    lines = ["%far: bf16[8, 16, 512, 64]@cuda:0 = prims.cos(%wide)"]
    for n in range(9):
        lines.append(f"%s{n}: bf16[8, 16, 512, 64]@cuda:0 = prims.mul(%x, %far)")
        lines.append(f"%r{n}: bf16[8, 16, 512]@cuda:0 = prims.sum(%s{n}, [3])")
    lines.append("return " + ", ".join(f"%r{n}" for n in range(9)))
    kept = reasons(inlined(head + "\n".join(lines) + "\n"), "materialised")
    assert "instructions" in kept["narrow"]
    assert "far" not in kept


BIAS = """\
input %x: f32[64, 8, 128, 128]@cuda:0
input %places: i64[128, 128]@cuda:0
input %table: f32[32, 8]@cuda:0
%rows: f32[128, 128, 8]@cuda:0 = prims.index(%table, [%places, None], False)
%heads: f32[8, 128, 128]@cuda:0 = prims.permute(%rows, [2, 0, 1])
%wide: f32[64, 8, 128, 128]@cuda:0 = prims.broadcast_in_dim(%heads, [64, 8, 128, 128], [1, 2, 3])
%y: f32[64, 8, 128, 128]@cuda:0 = prims.add(%x, %wide)
return %y
"""


def test_a_table_lies_in_the_order_of_those_who_read_it_over_and_over() -> None:
    graph = inlined(BIAS)
    (rows,) = [buffer for buffer in graph.buffers if buffer.name == "rows"]
    assert rows.type.stride == (128, 1, 128 * 128)
    few = inlined(BIAS.replace("64, 8, 128", "7, 8, 128"), InlinePointwise(spread=2, launch=0))
    (rows,) = [buffer for buffer in few.buffers if buffer.name == "rows"]
    assert rows.type.stride == (128 * 8, 8, 1)


def test_expressions_do_not_grow_without_end() -> None:
    lines = ["input %v0: f32[8]", *(f"%v{n + 1}: f32[8] = prims.sin(%v{n})" for n in range(60)), "return %v60"]
    graph = inlined("\n".join(lines) + "\n")
    assert len(kernels(graph)) > 1
    assert any("large enough for a kernel" in reason for reason in reasons(graph, "materialised").values())


def test_many_readers_of_many_buffers_share_a_sum() -> None:
    text = "".join(f"input %x{n}: f32[64, 64]\n" for n in range(4))
    text += "%a: f32[64, 64] = prims.add(%x0, %x1)\n%b: f32[64, 64] = prims.add(%a, %x2)\n"
    text += "%c: f32[64, 64] = prims.add(%b, %x3)\n"
    text += "".join(f"%s{n}: f32[64] = prims.sum(%c, [{n}])\n" for n in range(2)) + "%n: f32[64, 64] = prims.neg(%c)\n"
    graph = inlined(text + "return %s0, %s1, %n\n")
    assert "3 users would read 65536 bytes each instead of 16384" in reasons(graph, "materialised").values()


def test_what_is_dear_and_read_in_steps_is_kept() -> None:
    """A pool of a dear function: the function runs along memory, though nothing is computed twice."""
    text = "input %x: f32[8, 64]\n%e: f32[8, 64] = prims.exp(%x)\n%l: f32[8, 64] = prims.log1p(%e)\n"
    text += "%a: f32[8, 32] = prims.slice(%l, [0, 0], [8, 64], [1, 2])\n"
    text += "%b: f32[8, 32] = prims.slice(%l, [0, 1], [8, 64], [1, 2])\n"
    text += "%y: f32[8, 32] = prims.add(%a, %b)\nreturn %y\n"
    assert "read in steps" in reasons(inlined(text), "materialised")["l"]
    assert reasons(inlined(text.replace("log1p", "neg").replace("exp", "neg")), "materialised") == {}


WIDENED = """\
input %x: bf16[64, 64]
input %y: bf16[64, 64]
input %z: bf16[64, 64]
%a: bf16[64, 64] = prims.mul(%x, %y)
%b: bf16[64, 64] = prims.add(%a, %z)
%w: f32[64, 64] = prims.convert_element_type(%b, float32)
%r: f32[64] = prims.sum(%w, [0])
%s: f32[64] = prims.sum(%w, [1])
%n: f32[64, 64] = prims.neg(%w)
%e: f32[64, 64] = prims.exp(%w)
return %r, %s, %n, %e
"""


def test_a_copy_in_a_wider_dtype_is_not_kept_but_what_it_is_made_of() -> None:
    made = [kernel.origins for kernel in kernels(inlined(WIDENED))]
    assert made == [("b",), ("r",), ("s",), ("n",), ("e",)]
    narrow = WIDENED.replace("bf16", "f64")  # the copy is the smaller one: it is what is kept
    assert next(kernel.origins for kernel in kernels(inlined(narrow))) == ("w",)


def test_a_wider_copy_that_is_returned_is_made() -> None:
    graph = inlined(WIDENED.replace("return %r", "return %w, %r"))
    assert "w" in [kernel.origins[-1] for kernel in kernels(graph)]


def test_what_is_in_memory_for_a_call_is_read_there() -> None:
    text = """\
input %a: bf16[4, 16, 64]@cuda:0
input %b: bf16[4, 16, 64]@cuda:0
input %w: bf16[64, 64]@cuda:0
%y: bf16[4, 16, 64]@cuda:0 = prims.mul(%a, %b)
%rows: bf16[64, 64]@cuda:0 = prims.reshape(%y, [64, 64])
%m: bf16[64, 64]@cuda:0 = aten.mm.default(%rows, %w)
%back: bf16[4, 16, 64]@cuda:0 = prims.reshape(%m, [4, 16, 64])
%z: bf16[4, 16, 64]@cuda:0 = prims.add(%back, %y)
return %z
"""
    assert [kernel.origins for kernel in kernels(inlined(text))] == [("y",), ("rows",), ("z",)]
    assert reasons(inlined(text), "materialised")["y"].startswith("it is in memory for a call, and 2 users")
    assert "y" in reasons(inlined(text.replace("prims.mul(%a, %b)", "prims.neg(%a)")), "inlined")


def test_gradients_of_pooling_are_gathered_once() -> None:
    """Two kernels read what is made of the windows that cover an element."""
    text = """\
input %g: f32[2, 64, 28, 28]@cuda:0
input %x: f32[2, 64, 56, 56]@cuda:0
input %i: i64[2, 64, 28, 28]@cuda:0
%d: f32[2, 64, 56, 56]@cuda:0 = prims.max_pool2d_backward(%g, %x, [3, 3], [2, 2], [1, 1], [1, 1], False, %i)
%y: f32[2, 64, 56, 56]@cuda:0 = prims.mul(%d, 2.0)
%s: f32[64]@cuda:0 = prims.sum(%y, [0, 2, 3])
%w: f32[2, 64, 56, 56]@cuda:0 = prims.broadcast_in_dim(%s, [2, 64, 56, 56], [1])
%z: f32[2, 64, 56, 56]@cuda:0 = prims.sub(%y, %w)
return %z
"""
    sections = [section for kernel in kernels(lowered(text)) for section in kernel.sections]
    assert sum(isinstance(s, Load) and s.buffer == "i" for section in sections for s in section.statements) == 4


READ = """\
input %x: f32[32, 8]
input %places: i64[16]
%rows: f32[16, 8] = prims.index(%x, [%places, None], True)
%twice: f32[16, 8] = prims.add(%rows, %rows)
%y: f32[{shape}] = prims.slice(%twice, [{start}], [{stop}], [1, 1])
%z: f32[{shape}] = prims.exp(%y)
return %z
"""


@pytest.mark.parametrize(
    ("start", "stop", "count"), [("0, 0", "4, 8", 2), ("2, 0", "16, 8", 2), ("0, 4", "16, 8", 1), ("0, 0", "16, 8", 1)]
)
def test_what_may_raise_is_computed_where_nobody_reads_it(start: str, stop: str, count: int) -> None:
    """Every index is checked, though some rows are not read; it does not matter which of their columns are."""
    (a, b), (c, d) = (map(int, text.split(", ")) for text in (start, stop))
    text = READ.format(shape=f"{c - a}, {d - b}", start=start, stop=stop)
    assert len(kernels(inlined(text))) == count
    on_gpu = text.replace("]\n", "]@cuda:0\n").replace("] =", "]@cuda:0 =").replace(", 1]@cuda:0)", ", 1])")
    assert len(kernels(inlined(on_gpu))) == 1


WINDOWED = """\
input %x: f32[2, 6, 6, 8]{{{strides}}}
input %w: f32{weight}
%relu: f32[2, 6, 6, 8] = prims.maximum(%x, 0)
%p: f32[2, 8, 8, 8] = prims.pad({image}, [0, {pad}, {pad}, 0], [0, {pad}, {pad}, 0], 0.0)
%y: f32[2, 6, 6, 8] = prims.direct_conv(%p, {kernel}, [1, 1], [1, 1])
return %y
"""
PLAIN = dict(strides="288, 48, 8, 1", weight="[3, 3, 8]", kernel="%w", image="%relu", pad=1)
TURNED = {
    "weight": "[8, 3, 3]\n%turned: f32[3, 3, 8]{3, 1, 9} = prims.permute(%w, [1, 2, 0])",
    "kernel": "%turned",
}


def test_windows_read_what_lies_in_memory_without_masks() -> None:
    """The padded image; a weight that lies otherwise is copied, one that lies so is not."""
    graph = inlined(WINDOWED.format(**PLAIN))
    why = "read at several places of each point, under masks or across its memory"
    assert reasons(graph, "materialised") == {"p": why}
    turned = reasons(inlined(WINDOWED.format(**(PLAIN | TURNED))), "materialised")
    assert set(turned.values()) == {why}
    assert len(turned) == 2
    on_gpu = WINDOWED.format(**(PLAIN | TURNED)).replace("]\n", "]@cuda:0\n").replace("] =", "]@cuda:0 =")
    on_gpu = on_gpu.replace("}\n", "}@cuda:0\n").replace("} =", "}@cuda:0 =")
    assert reasons(inlined(on_gpu), "materialised") == {}
