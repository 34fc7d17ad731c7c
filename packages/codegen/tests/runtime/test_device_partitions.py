"""Units of several GPUs, cut in stretches of one: together they mean the unit, wherever each buffer is."""

import weakref

import msgspec
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Options, load
from codegen.runtime.device_partitions import InTurns, partitions_of
from codegen.stage import emit
from codegen.testing.programs import SYMBOLIC_STEPS, placed, step_graphs
from stagewire.graph import DeviceArg, Ref
from stagewire.loop import Buffer, Extern, LoopGraph
from stagewire.parser import parse_document
from stagewire.program import CallExtern, made_buffers
from stagewire.types import contiguous
from stagewire.verify.programs import check_unit

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
DEVICES = ("cpu", "cuda:0", "cuda:1")


@EXAMPLES
@given(step_graphs(), st.data())
def test_stretches_mean_the_unit(directory, graph, data):
    """Their devices say where to cut; then all of them are run on the CPU."""
    unit = emit(graph, Options())
    where = st.sampled_from(DEVICES)
    stretches = partitions_of(placed(unit, {buffer.name: data.draw(where) for buffer in graph.buffers}))
    assert stretches or not unit.instructions
    stretches = tuple(placed(one, "cpu") for one in stretches)
    for one in stretches:
        assert {fault.label for fault in check_unit(one)} <= {"R12"}  # another may write what it makes
    whole = load(unit, directory)
    for executor in ("fast", "reference"):
        run = InTurns(unit, stretches, load(stretches, directory, executor=executor) if stretches else ())
        for _ in range(2):
            inputs = [torch.randn(type_.shape) / 4 for type_ in unit.input_types]
            before = [given.clone() for given in inputs]
            for found, expected in zip(run(*inputs), whole(*inputs), strict=True):
                if isinstance(expected, torch.Tensor):
                    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
                    assert found.stride() == expected.stride()
                else:
                    assert found == expected
            assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
            given_up = list(inputs)
            again = run(given_up)
            assert not given_up
            assert len(again) == len(unit.outputs)
        assert run([]) == ()


@settings(EXAMPLES, max_examples=20)
@given(st.data())
def test_stretches_of_symbolic_sizes(directory, data):
    unit = emit(parse_document(SYMBOLIC_STEPS).forward, Options())
    where = st.sampled_from(DEVICES)
    names = {*unit.inputs, *(name for one in unit.instructions for name, _, _ in made_buffers(one))}
    stretches = partitions_of(placed(unit, {name: data.draw(where) for name in sorted(names)}))
    stretches = tuple(placed(one, "cpu") for one in stretches)
    whole, run = load(unit, directory), InTurns(unit, stretches, load(stretches, directory))
    for b, s in ((3, 4), (2, 7), (3, 4)):
        inputs = torch.randn(b, s, 8), torch.randn(8, 6)
        for found, expected in zip(run(*inputs), whole(*inputs), strict=True):
            assert found == expected if isinstance(expected, int) else torch.equal(found, expected)


def chain(*devices):
    """A copy from each device to the next, with a sine on each."""
    buffers = [Buffer("x0", contiguous("float32", (8,), devices[0]), "input")]
    steps = []
    for k, device in enumerate(devices):
        type_ = contiguous("float32", (8,), device)
        if k:
            buffers.append(Buffer(f"x{k}", type_, "extern"))
            steps.append(
                Extern("aten._to_copy.default", (Ref(f"y{k - 1}"),), {"device": DeviceArg(device)}, (f"x{k}",))
            )
        buffers.append(Buffer(f"y{k}", type_, "extern"))
        steps.append(Extern("aten.mish.default", (Ref(f"x{k}"),), {}, (f"y{k}",)))
    graph = LoopGraph(
        buffers=tuple(buffers), inputs=("x0",), outputs=(Ref(f"y{len(devices) - 1}"),), steps=tuple(steps)
    )
    return emit(graph, Options(target="triton"))


def test_where_a_unit_is_cut():
    stretches = partitions_of(chain("cuda:0", "cpu", "cuda:0", "cuda:1", "cuda:0"))
    targets = [
        [one.target.split(".")[1] for one in own.instructions if isinstance(one, CallExtern)] for own in stretches
    ]
    assert targets == [["mish", "_to_copy", "mish", "_to_copy", "mish"], ["_to_copy"], ["mish"], ["_to_copy"], ["mish"]]
    assert [(own.inputs, own.outputs) for own in stretches[:2]] == [(("x0",), (Ref("y2"),)), (("y2",), (Ref("x3"),))]


def test_units_that_are_not_cut():
    unit = chain("cuda:0", "cuda:1")
    unstated = tuple(
        msgspec.structs.replace(one, result_types=()) if isinstance(one, CallExtern) else one
        for one in unit.instructions
    )
    assert partitions_of(unit)
    assert partitions_of(msgspec.structs.replace(unit, instructions=unstated)) == ()


def test_what_is_over_is_let_go():
    """What only the list of inputs held is gone before the next stretch runs."""
    unit = chain("cuda:0", "cuda:1")
    alive = []

    def run(operands):
        operands.clear()
        alive.append(reference() is not None)
        return (torch.zeros(8),)

    inputs = [torch.zeros(8)]
    reference = weakref.ref(inputs[0])
    InTurns(unit, partitions_of(unit), [run] * 3)(inputs)
    assert alive == [False, False, False]
