"""update_inputs: results that only update an input lie where the input is."""

from __future__ import annotations

import msgspec
import numpy
import pytest

from loopir.interpret import interpret
from loopir.stage import LoopIR
from loopir.testing.externs import EXTERNS
from loopir.testing.graphs import document
from stagewire.grad import BoundOutput, Fresh, Mutation, Saved, SavedInput, SavedResult, Tangent
from stagewire.loop import Kernel, Loop
from stagewire.statements import writes_of
from stagewire.verify import verify

STEP = """\
input %x: f32[8, 8]
input %g: f32[8, 8]
%s: f32[8, 8] = prims.mul(%g, 0.1)
%y: f32[8, 8] = prims.sub(%x, %s)
return %y
"""


def updated(text: str, *outputs: BoundOutput, under_grad: bool = False) -> Loop:
    """The program whose result 0 updates its input 0."""
    given = document(text)
    inputs = tuple(msgspec.structs.replace(one, mutated=n == 0) for n, one in enumerate(given.binding.inputs))
    mutations = (Mutation(0, 0, under_grad=under_grad),)
    binding = msgspec.structs.replace(given.binding, inputs=inputs, mutations=mutations, outputs=outputs)
    loop = LoopIR().run(msgspec.structs.replace(given, binding=binding))
    verify(loop)
    return loop


def trained(text: str, *saved: Saved) -> Loop:
    """The same, with a backward that reads what is saved; the program returns result 1."""
    given = document(text)
    inputs = tuple(msgspec.structs.replace(one, mutated=n == 0) for n, one in enumerate(given.binding.inputs))
    names = "".join(f"input %s{number}: f32[8, 8]\n" for number in range(len(saved)))
    sums = "".join(f"%t{number + 1}: f32[8, 8] = prims.add(%t{number}, %s{number})\n" for number in range(len(saved)))
    backward = document(f"{names}input %t0: f32[8, 8]\n{sums}return %t{len(saved)}\n").forward
    binding = msgspec.structs.replace(
        given.binding, inputs=inputs, mutations=(Mutation(0, 0),), outputs=(Fresh(1),), saved=saved,
        tangents=(Tangent(1, inputs[1].type),), input_gradients=(None, 0),
    )  # fmt: skip
    loop = LoopIR().run(msgspec.structs.replace(given, binding=binding, backward=backward))
    verify(loop)
    return loop


def in_place(loop: Loop) -> bool:
    reused = {buffer.reuse for buffer in loop.forward.buffers}
    (mutation,) = loop.binding.mutations
    assert mutation.in_place == ("x" in reused)
    return mutation.in_place


def test_a_step_is_written_in_place() -> None:
    loop = updated(STEP)
    assert in_place(loop)
    assert loop.forward.updates == ((0, "x"),)
    assert ("an input that it updates", 256) in {(d.reason, d.bytes_saved) for d in loop.forward.decisions}


def test_without_reading_the_input() -> None:
    assert in_place(updated('input %x: f32[8]\n%y: f32[8] = prims.full([8], 1.0, "float32")\nreturn %y\n'))


MM = "%m: f32[8, 8] = aten.mm.default(%y, %g)\n"
SORTED = "%m: f32[8, 8] = aten.mish.default(%y)\n"
LOGGED = '%l: f32[8, 8] = mylib.log.default(%g) with effect="acts"\n'
REFUSED = {
    "another output": (STEP, (Fresh(0),)),
    "the input is an output too": (STEP.replace("return %y", "return %y, %x"), (Fresh(1),)),
    "the input is read afterwards": (
        STEP.replace("return %y\n", "%m: f32[8, 8] = aten.mm.default(%y, %x)\nreturn %y, %m\n"), (Fresh(1),)
    ),
    "read at another point": (STEP.replace(
        "prims.sub(%x, %s)", "prims.sub(%t, %s)").replace(
        "%y:", "%t: f32[8, 8]{1, 8} = prims.permute(%x, [1, 0])\n%y:"), ()),
    "a call that may fail follows": (STEP.replace("return %y", SORTED + "return %y, %m"), (Fresh(1),)),
    "an equal call that may fail follows": (STEP.replace("%s:", LOGGED.replace("l", "k", 1) + "%s:").replace(
        "return %y", "%m: f32[8, 8] = aten.mm.default(%y, %g)\n" + LOGGED + "return %y, %m"), (Fresh(1),)),
    "other strides": (STEP.replace("input %x: f32[8, 8]", "input %x: f32[8, 8]{1, 8}"), ()),
    "another dtype": (STEP.replace("%y: f32[8, 8] = prims.sub(%x, %s)",
                                   '%z: f32[8, 8] = prims.sub(%x, %s)\n'
                                   '%y: f64[8, 8] = prims.convert_element_type(%z, "float64")'), ()),
    "repeated elements": (STEP.replace("input %x: f32[8, 8]", "input %x: f32[8, 8]{0, 1}"), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, outputs = REFUSED[name]
    assert not in_place(updated(text, *outputs))


def test_products_may_follow() -> None:
    text = STEP.replace("return %y", MM + "return %y, %m")
    assert in_place(updated(text, Fresh(1)))


COUNTED = """\
input %x: i64[]
input %g: i64[8, 8]
%y: i64[] = prims.add(%x, 1)
%c: i64[8, 8] = prims.broadcast_in_dim(%x, [8, 8], [])
%m: i64[8, 8] = aten.mm.default(%g, %g)
%r: i64[8, 8] = prims.mul(%m, %c)
return %y, %r
"""


def test_what_counts_up_an_input_runs_behind_those_that_read_it() -> None:
    loop = updated(COUNTED, Fresh(1))
    assert in_place(loop)
    assert writes_of(loop.forward.steps[-1]) == ["y"]
    given, x = numpy.arange(64).reshape(8, 8), numpy.array(3)
    y, r = interpret(loop.forward, [x, given], EXTERNS)
    assert y == 4
    assert (r == given @ given * 3).all()


def test_unless_it_makes_what_others_read() -> None:
    """A kernel that updates and sums, whose sum is read by one behind it."""
    text = """\
input %x: f32[1, 2]
input %at: i64[]
%y: f32[1, 2] = prims.add(%x, %x)
%s: f32[] = prims.sum(%y, [0, 1])
%b: f32[1, 2] = prims.broadcast_in_dim(%s, [1, 2], [])
%i: f32[2] = prims.index(%b, (%at, None), false)
%w: f32[1, 2, 2] = prims.broadcast_in_dim(%x, [1, 2, 2], [1, 2])
return %y, %i, %w
"""
    graph = updated(text, Fresh(1), Fresh(2)).forward
    (both,) = [step for step in graph.steps if isinstance(step, Kernel) and "y" in writes_of(step)]
    assert len(writes_of(both)) == 2
    assert graph.steps[-1] is not both
    y, i, w = interpret(graph, [numpy.array([[2, 3]], "f"), numpy.array(0)], EXTERNS)
    assert (y == [[4, 6]]).all()
    assert (i == [10, 10]).all()
    assert (w == [2, 3]).all()


def test_unless_a_call_has_the_input() -> None:
    text = COUNTED.replace("%r:", "%d: i64[1] = prims.reshape(%x, [1])\n%n: i64[1] = aten.flip.default(%d, [0])\n%r:")
    assert not in_place(updated(text.replace("return %y, %r", "return %y, %r, %n"), Fresh(1), Fresh(2)))


POOL = """\
%p: f32[8, 8, 1, 1], %n: i64[8, 8, 1, 1] = aten.max_pool2d_with_indices.default(%v, [8, 8])
"""


def test_poolings_may_follow() -> None:
    text = STEP.replace("return %y", f"%v: f32[1, 8, 1, 8] = prims.reshape(%g, [1, 8, 1, 8])\n{POOL}return %y, %p")
    assert in_place(updated(text.replace("[8, 8, 1, 1]", "[1, 8, 1, 1]").replace("[8, 8])\nr", "[1, 8])\nr"), Fresh(1)))


def test_where_a_backward_follows() -> None:
    text = STEP.replace("return %y", MM.replace("%y", "%s") + "return %y, %m")
    assert in_place(trained(text, SavedInput(1)))
    assert not in_place(trained(text, SavedResult(0)))  # another forward may come before the backward that reads it


def test_writes_that_autograd_sees_are_copied() -> None:
    assert not in_place(updated(STEP, under_grad=True))


ROWS = """\
input %x: f32[8, 4]{device}
input %w: f32[4, 8]{device}
input %at: i64[2]{device}
input %new: f32[2, 4]{device}
%y: f32[8, 4]{device} = prims.index_put(%x, (%at,), %new, false, true)
%m: f32[8, 8]{device} = aten.mm.default(%y, %w)
return %y, %m
"""


def kernels(loop: Loop) -> list[str]:
    return [step.name for step in loop.forward.steps if isinstance(step, Kernel)]


def test_rows_are_written_in_place_on_a_gpu_whose_kernels_cannot_raise() -> None:
    loop = updated(ROWS.replace("{device}", "@cuda:0"), Fresh(1))
    assert in_place(loop)
    assert not any(name.startswith("checked") for name in kernels(loop))


def test_on_a_cpu_their_indices_are_checked_first() -> None:
    loop = updated(ROWS.replace("{device}", ""), Fresh(1))
    assert in_place(loop)
    assert kernels(loop)[0] == "checked0"
    x, w, new = numpy.zeros((8, 4), "f"), numpy.ones((4, 8), "f"), numpy.ones((2, 4), "f")
    interpret(loop.forward, [x, w, numpy.array([1, -1]), new], EXTERNS)
    with pytest.raises(IndexError):
        interpret(loop.forward, [x, w, numpy.array([1, 8]), new], EXTERNS)


def test_indices_that_are_checked_alike_are_checked_once() -> None:
    text = (
        ROWS.replace("{device}", "")
        .replace("return", "%z: f32[8, 4] = prims.index_put(%m, (%at,), %new, false, true)\nreturn")
        .replace("f32[8, 8]", "f32[8, 4]")
    )
    text = text.replace("f32[4, 8]", "f32[4, 4]").replace("%y, %m\n", "%y, %m, %z\n")
    assert [name for name in kernels(updated(text, Fresh(1), Fresh(2))) if name.startswith("checked")] == ["checked0"]


@pytest.mark.parametrize(
    "index",
    [
        "%i: i64[2] = aten.mish.default(%at)",
        "%i: i64[2] = prims.floor_div(%at, %other)",
        "%i: i64[2] = prims.cumsum(%at, 0)",
    ],
    ids=["of a call", "of a division that may raise", "of a sum"],
)
def test_an_index_that_depends_on_more_is_not(index: str) -> None:
    text = ROWS.replace("{device}", "").replace("%y:", f"{index}\n%y:").replace("(%at,)", "(%i,)")
    assert not in_place(updated(text.replace("input %new", "input %other: i64[2]\ninput %new"), Fresh(1)))
