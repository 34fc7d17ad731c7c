"""Templates mean what the calls and kernels mean that they stand for."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen import Options, load
from codegen.choices import chosen
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.products import product_graphs, whole_inputs
from codegen.testing.reference import run_graph, windowed
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    Free,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Store,
    Term,
)
from stagewire.program import CallExtern
from stagewire.types import contiguous
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
    assert not list(check_unit(unit))
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


@pytest.mark.usefixtures("interpreted_products")
def test_products_of_other_batches_are_launched_for_their_own(directory, device):
    """The text of a template does not tell how many batches there are."""
    batches, sides = (3, 1, 2), (16, 16)
    buffers, steps = [], []
    for n, batch in enumerate(batches):
        kind = contiguous("float32", (batch, *sides))
        roles = (("a", "input"), ("b", "input"), ("p", "extern"), ("y", "kernel"))
        buffers += [Buffer(f"{name}{n}", kind, role) for name, role in roles]
        index = Index(0, (Term(1, AxisAtom("i")),))
        body = (Load("v", f"p{n}", index, "float32"), Compute("w", "neg", (Ref("v"),), "float32"))
        section = Section((), (*body, Store(f"y{n}", index, Ref("w"))))
        steps.append(Extern("aten.bmm.default", (Ref(f"a{n}"), Ref(f"b{n}")), {}, (f"p{n}",)))
        steps += [Kernel(f"k{n}", (Axis("i", batch * 256),), (section,)), Free(f"p{n}")]
    inputs = tuple(one.name for one in buffers if one.role == "input")
    outputs = tuple(Ref(f"y{n}") for n in range(len(batches)))
    graph = LoopGraph(buffers=tuple(buffers), inputs=inputs, outputs=outputs, steps=tuple(steps))
    unit = emit(placed(graph, device), Options(target="triton", autotune="force"))
    assert not any(isinstance(one, CallExtern) for one in unit.instructions)
    given = [torch.randint(-3, 4, (batch, *sides)).float() for batch in batches for _ in range(2)]
    found = load(unit, directory)(*[one.to(device) for one in given])
    torch.testing.assert_close(
        [one.cpu() for one in found], [-(a @ b) for a, b in zip(given[::2], given[1::2], strict=True)]
    )
