"""A unit as recordings see it: why it cannot be recorded, its inputs and outputs at given sizes, what is launched."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen import Options, Replay, load, why_not_recorded
from codegen.choices import Bound
from codegen.runtime.recordable import FEWEST, Recordable
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.reference import span
from codegen.testing.strategies import SYMBOL_VALUES, at_value, sample_inputs, symbolic_graphs
from stagewire.expr import Expr
from stagewire.graph import DeviceArg, List, Ref
from stagewire.parser import parse_document
from stagewire.program import CallExtern, MakeView, Unit
from stagewire.types import TensorType


def on_gpu(*shape):
    return TensorType("float32", shape, tuple(torch.empty(shape, device="meta").stride()), device="cuda:0")


def calls(count, **changed):
    call = CallExtern("aten.sin.default", (Ref("x"),), {}, ("y",), (on_gpu(4),))
    first = replace(call, **changed)
    return Unit(
        target="triton", source="", kernels=(), inputs=("x",), input_types=(on_gpu(4),), outputs=(Ref("y"),),
        instructions=(first, *[call] * (count - 1)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "reason"),
    [
        (calls(FEWEST), None),
        (calls(FEWEST - 1), "few kernels"),
        (calls(FEWEST, result_types=()), "size that depends on data"),
        (calls(FEWEST, result_types=(replace(on_gpu(4), device="cpu"),)), "the CPU beside"),
        (calls(FEWEST, result_types=(replace(on_gpu(4), device="cuda:1"),)), "several devices"),
        (replace(calls(FEWEST), input_types=(replace(on_gpu(4), device="cpu"),)), "the CPU beside"),
    ],
)
def test_what_stands_against_a_recording(unit, reason):
    found = why_not_recorded(unit)
    assert found == reason if reason is None else reason in found


@pytest.mark.parametrize("kwargs", [{}, {"device": DeviceArg("cpu")}])
def test_random_numbers_of_the_cpu_that_nothing_reads_are_drawn_beside(kwargs):
    draw = CallExtern("aten.rand.default", (List(()),), kwargs, ("",))
    unit = replace(calls(FEWEST), instructions=(draw, *calls(FEWEST).instructions, draw))
    made = []
    recordable = Recordable(unit, Bound(len, lambda: unit), Replay(), lambda one: made.append(one) or len)
    assert why_not_recorded(unit) is None
    recordable.target({})
    assert draw not in made[0].instructions
    torch.manual_seed(0)
    recordable.advance_host_generators({})
    found = torch.rand(1)
    torch.manual_seed(0)
    assert found == torch.rand(3)[2]


def test_inputs_and_outputs_at_sizes():
    n = Expr("n")
    window = TensorType("float32", (n,), (2,), storage_offset=2 * n)
    unit = Unit(
        target="cpp", source="", kernels=(), inputs=("x", "y", "w"), outputs=(Ref("x"), Ref("v"), Ref("z"), 3 * n, 5),
        input_types=(TensorType("float32", (4, n), (n, 1)), TensorType("float32", (n, 3), (1, 0)), window),
        instructions=(
            MakeView("v", "x", window),
            CallExtern("aten.sin.default", (Ref("y"),), {}, ("z",), (TensorType("float32", (n,), (1,)),)),
        ),
        written=("w",),
    )  # fmt: skip
    unit = Recordable(unit, Bound(len, lambda: unit), Replay(frozenset((0,)), frozenset((2,))), lambda one: len)
    assert unit.in_place({"n": 6}) == {0, 1, 2}
    same, part, made, number, literal = unit.outputs({"n": 6})
    assert (same.input, same.window) == (0, None)
    assert (part.input, part.window[1]) == (0, 2 * 6 * 4)
    assert part.window[0].shape == (6,)
    assert (made.is_result, made.may_copy) == (True, True)
    assert (number.literal, literal.literal) == (18, 5)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(symbolic_graphs(), st.integers(0, 5))
def test_one_loaded_unit_takes_memory_for_results_of_every_size(directory, graph, seed):
    unit = emit(graph, Options(), {"n": 64})
    loaded = []

    def loader(one):
        loaded.append(one)
        return load(one, directory)

    plain = load(unit, directory)
    recordable = Recordable(unit, Bound(plain, lambda: unit), Replay(), loader)
    for n in SYMBOL_VALUES:
        at = at_value(graph, n)
        types, values = {buffer.name: buffer.type for buffer in at.buffers}, sample_inputs(at, seed)
        inputs = [n, *(values[name].as_strided(types[name].shape, types[name].stride) for name in at.inputs)]
        plan, run, _ = recordable.target({"n": n})
        new = {name: torch.zeros(span(type_), dtype=getattr(torch, type_.dtype)) for name, type_ in plan.given.items()}
        given = [new[name].as_strided(type_.shape, type_.stride) for name, type_ in plan.given.items()]
        memory = {one.untyped_storage().data_ptr() for one in given}
        for have, want in zip(run(*inputs, *given), plain(*inputs), strict=True):
            assert_same(have, want)
            assert not plan.given or have.untyped_storage().data_ptr() in memory
    assert len(loaded) == 1


TOTALS = """
  loop 2 {
    binding { inputs = () outputs = () symbols { Symbol(name="n", source=None, hint=8, lower=2, upper=None) } }
    forward {
      buffers { %x: f32[n, 2*n]@cuda:0 = input  %y: f32[n]@cuda:0 = kernel }
      inputs = ("x",)
      outputs = (%y,)
      steps {
        kernel total for i in n {
          section for j in 2*n {
            %v: f32 = load %x[{2*n}*i + j]
            %s: f32 = reduce sum %v
          }
          section {
            store %y[i] = %s
          }
        }
      }
    }
  }"""


def test_machine_code_for_multiples_is_recorded_where_they_are():
    """Other code is a unit of its own: while a recording is made, none is compiled or loaded."""
    unit = emit(parse_document(TOTALS).forward, Options(target="triton"), multiples=(("n", 8), ("unused", 2)))
    loaded = []
    recordable = Recordable(unit, Bound(len, lambda: unit), Replay(), lambda one: loaded.append(one) or len)
    for n in (8, 16, 3, 24, 5):
        recordable.target({"n": n})
    assert [one.multiples for one in loaded] == [(("n", 8),), ()]
