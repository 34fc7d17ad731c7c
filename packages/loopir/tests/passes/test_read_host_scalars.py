"""read_host_scalars: what lies on the CPU and is one number is read there by the kernels of a GPU."""

from __future__ import annotations

import pytest

from loopir.passes.read_host_scalars import ReadHostScalars
from loopir.schedule import Schedule
from loopir.stage import LoopIR
from loopir.testing.graphs import document
from stagewire.graph import DeviceArg, Ref
from stagewire.loop import Buffer, Extern, Kernel, Load, LoopGraph, Section, Store
from stagewire.statements import reads_of
from stagewire.types import TensorType
from stagewire.verify import verify

SCALED = """\
input %x: f32[8, 8]@cuda:0
input %n: {dtype}[]
%moved: {dtype}[]@cuda:0 = aten._to_copy.default(%n, device=device("cuda:0"))
%number: f32[]@cuda:0 = prims.convert_element_type(%moved, "float32")
%wide: f32[8, 8]@cuda:0 = prims.broadcast_in_dim(%number, [8, 8], [])
%y: f32[8, 8]@cuda:0 = prims.mul(%x, %wide)
return {returned}
"""


def loops(text: str) -> LoopGraph:
    made = LoopIR().run(document(text))
    verify(made)
    return made.forward


def devices(graph: LoopGraph) -> list[tuple[set[str], set[str]]]:
    """What each kernel loads and stores, by devices."""
    types = {buffer.name: buffer.type.device for buffer in graph.buffers}
    kernels = [step for step in graph.steps if isinstance(step, Kernel)]
    statements = [[s for section in kernel.sections for s in section.statements] for kernel in kernels]
    return [
        ({types[s.buffer] for s in one if isinstance(s, Load)}, {types[s.buffer] for s in one if isinstance(s, Store)})
        for one in statements
    ]


@pytest.mark.parametrize("dtype", ["f64", "f32", "i64"])
def test_a_kernel_reads_the_number_of_the_cpu(dtype: str) -> None:
    graph = loops(SCALED.format(dtype=dtype, returned="%y"))
    assert devices(graph) == [({"cpu", "cuda:0"}, {"cuda:0"})]
    assert not any(isinstance(step, Extern) for step in graph.steps)


def test_numbers_of_other_dtypes_are_copied() -> None:
    graph = loops(SCALED.format(dtype="bf16", returned="%y"))
    assert devices(graph) == [({"cuda:0"}, {"cuda:0"})]
    assert sum(isinstance(step, Extern) for step in graph.steps) == 1


def test_a_copy_that_is_returned_is_made() -> None:
    graph = loops(SCALED.format(dtype="f64", returned="%y, %moved"))
    assert sum(isinstance(step, Extern) for step in graph.steps) == 1
    assert Ref("moved") in graph.outputs


def test_calls_without_results_stay() -> None:
    number, moved = TensorType("float64", (), ()), TensorType("float64", (), (), device="cuda:0")
    buffers = {
        "n": Buffer("n", number, "input"),
        "moved": Buffer("moved", moved, "extern"),
        "y": Buffer("y", moved, "kernel"),
    }
    copy = Extern("aten._to_copy.default", (Ref("n"),), {"device": DeviceArg("cuda:0")}, ("moved",))
    call = Extern("custom.note.default", (Ref("n"),), {}, ())
    nest = Kernel("nest", (), (Section((), (Load("v", "moved", (), "float64"), Store("y", (), Ref("v")))),))
    given = Schedule(buffers=buffers, inputs=("n",), outputs=(Ref("y"),), items=(copy, call, nest))
    found = ReadHostScalars().run(given)
    assert found.items[0] == call
    assert [reads_of(item) for item in found.items] == [["n"], ["n"]]
    assert "moved" not in found.buffers


def test_what_is_computed_on_the_cpu_is_computed_there() -> None:
    graph = loops("""\
input %x: f32[8]@cuda:0
input %z: f32[8]@cuda:0
input %n: f64[]
input %m: f64[]
%a: f64[] = prims.add(%n, 1.0)
%b: f64[] = prims.pow(0.9, %a)
%p: f64[]@cuda:0 = aten._to_copy.default(%b, device=device("cuda:0"))
%q: f32[]@cuda:0 = prims.convert_element_type(%p, "float32")
%w: f32[8]@cuda:0 = prims.broadcast_in_dim(%q, [8], [])
%y: f32[8]@cuda:0 = prims.mul(%x, %w)
%c: f64[] = prims.add(%m, 1.0)
%r: f64[]@cuda:0 = aten._to_copy.default(%c, device=device("cuda:0"))
%s: f32[]@cuda:0 = prims.convert_element_type(%r, "float32")
%t: f32[8]@cuda:0 = prims.broadcast_in_dim(%s, [8], [])
%v: f32[8]@cuda:0 = prims.mul(%z, %t)
return %y, %v
""")
    found = devices(graph)
    assert found[0] == ({"cpu"}, {"cpu"})  # all of it, and first
    assert found[1:] == [({"cpu", "cuda:0"}, {"cuda:0"})] * 2


def test_an_element_of_a_vector_on_the_cpu_is_a_number_of_its_own() -> None:
    graph = loops("""\
input %x: f32[8]@cuda:0
input %n: f64[5]
%one: f64[1] = prims.slice(%n, [2], [3], [1])
%a: f64[] = prims.reshape(%one, [])
%p: f64[]@cuda:0 = aten._to_copy.default(%a, device=device("cuda:0"))
%q: f32[]@cuda:0 = prims.convert_element_type(%p, "float32")
%w: f32[8]@cuda:0 = prims.broadcast_in_dim(%q, [8], [])
%y: f32[8]@cuda:0 = prims.mul(%x, %w)
return %y
""")
    assert devices(graph) == [({"cpu"}, {"cpu"}), ({"cpu", "cuda:0"}, {"cuda:0"})]
    shapes = {buffer.name: buffer.type.shape for buffer in graph.buffers}
    (kernel,) = [step for step in graph.steps if isinstance(step, Kernel)][1:]
    loaded = [s.buffer for section in kernel.sections for s in section.statements if isinstance(s, Load)]
    assert {shapes[name] for name in loaded} == {(8,), ()}
