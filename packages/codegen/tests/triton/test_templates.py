"""Templates mean what the calls and kernels mean that they stand for."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen import Options, load
from codegen.choices import chosen
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.products import product_graphs, whole_inputs
from codegen.testing.reference import run_graph, windowed
from stagewire.program import CallExtern
from stagewire.verify.programs import check_unit

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def placed(graph, device):
    buffers = [replace(buffer, type=replace(buffer.type, device=device)) for buffer in graph.buffers]
    return replace(graph, buffers=tuple(buffers))


def run(unit, graph, inputs, directory, device):
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    tensors = [inputs[name].to(device).as_strided(types[name].shape, types[name].stride) for name in graph.inputs]
    return load(unit, directory)(*tensors)


@pytest.mark.usefixtures("interpreted_products")
@FEW
@given(graph=product_graphs(), seed=st.integers(0, 5), pick=st.integers(0, 20))
def test_drawn_products(directory, device, graph, seed, pick):
    unit = emit(placed(graph, device), Options(target="triton", autotune="time"))
    assert not list(check_unit(unit, None, ()))
    assert len(unit.choices) == 1
    (choice,) = unit.choices
    inputs = whole_inputs(graph, seed)
    expected = run_graph(graph, inputs)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    templated = chosen(unit, {0: pick % len(choice.alternatives)})
    assert not any(isinstance(one, CallExtern) for one in templated.instructions)
    for one in (chosen(unit, {}), templated):
        for output, tensor in zip(graph.outputs, run(one, graph, inputs, directory, device), strict=True):
            assert_same(tensor.cpu(), windowed(expected[output.name], types[output.name]))
