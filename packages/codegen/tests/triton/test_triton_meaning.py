"""Triton units mean what the reference interpreter of `Loop` means: sample documents and generated kernels."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import stagewire
from codegen import Options, load
from codegen.errors import UnsupportedKernel
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.interpreter import retuned
from codegen.testing.reference import run_graph, span
from codegen.testing.strategies import (
    indirect_graphs,
    masked_graphs,
    pointwise_graphs,
    reduction_graphs,
    sample_inputs,
    scan_graphs,
)
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Store,
    Term,
    ValueAtom,
)
from stagewire.types import contiguous

SAMPLES = sorted((Path(__file__).parent.parent / "data").rglob("*.json"))
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
"""Triton's interpreter runs a program instance in milliseconds."""


def placed(graph, device):
    """The graph with all its buffers on `device`."""
    buffers = [replace(buffer, type=replace(buffer.type, device=device)) for buffer in graph.buffers]
    return replace(graph, buffers=tuple(buffers))


def check(graph, seed, directory, device):
    """Run the emitted unit on `device` and compare every output with the reference on CPU."""
    unit = emit(placed(graph, device), Options(target="triton"))
    inputs = sample_inputs(graph, seed)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    run = load(unit, directory)
    tensors = [inputs[name].to(device).as_strided(types[name].shape, types[name].stride) for name in graph.inputs]
    found = run(*tensors)
    expected = run_graph(graph, inputs)
    for output, tensor in zip(graph.outputs, found, strict=True):
        assert_same(tensor.as_strided((span(types[output.name]),), (1,)).cpu(), expected[output.name])


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples(path, directory, device):
    graph = stagewire.load(path, expect="loop").forward
    if not all(isinstance(step, Kernel) for step in graph.steps):
        return check_externs(graph, directory, device)
    check(graph, 1, directory, device)


def check_drawn(graph, seed, directory, device):
    """`check`, leaving out what Triton's interpreter cannot do: libdevice, and large folds (number by number)."""
    if device == "cpu":
        assume("libdevice." not in emit(graph, Options(target="triton")).source)
        assume(max(span(buffer.type) for buffer in graph.buffers) <= 512)
    check(graph, seed, directory, device)


def check_externs(graph, directory, device):
    """Documents with extern calls: against the C++ unit of the same document."""
    inputs = sample_inputs(graph, 1)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    tensors = [inputs[name].as_strided(types[name].shape, types[name].stride) for name in graph.inputs]
    expected = load(emit(graph, Options()), directory)(*tensors)
    found = load(emit(placed(graph, device), Options(target="triton")), directory)(
        *[tensor.to(device) for tensor in tensors]
    )
    for have, want in zip(found, expected, strict=True):
        torch.testing.assert_close(have.cpu(), want, rtol=1e-3, atol=1e-3)


@FEW
@given(graph=pointwise_graphs(), seed=st.integers(0, 5))
def test_pointwise(directory, device, graph, seed):
    check_drawn(graph, seed, directory, device)


@FEW
@given(graph=reduction_graphs(), seed=st.integers(0, 5))
def test_reductions(directory, device, graph, seed):
    check_drawn(graph, seed, directory, device)


@FEW
@given(graph=scan_graphs(), seed=st.integers(0, 5))
def test_scans(directory, device, graph, seed):
    check_drawn(graph, seed, directory, device)


@FEW
@given(graph=scan_graphs(sizes=(1, 2, 5, 9)), seed=st.integers(0, 5))
def test_scans_from_tile_to_tile(directory, device, graph, seed):
    """With tiles of four points, so that most loops are of several."""
    with pytest.MonkeyPatch.context() as patch:
        retuned(patch, persistent_row=1, loop_tile=4, scan_tile=4, square=4, column_tile=16)
        patch.setattr("codegen.triton.plan.WARP", 4)
        check_drawn(graph, seed, directory, device)


@FEW
@given(scan_graphs(sizes=(1, 2, 5, 9)), st.integers(0, 5), st.sampled_from((2, 4)), st.sampled_from((64, 256)))
def test_scans_of_columns_in_steps(directory, device, graph, seed, steps, tile):
    """A few points of each column together by one lane or several, however few columns there are."""
    with pytest.MonkeyPatch.context() as patch:
        retuned(patch, steps=steps)
        patch.setattr("codegen.triton.plan.WARP", 2)
        retuned(patch, step_bytes=tile, busy_columns=1)
        check_drawn(graph, seed, directory, device)


@FEW
@given(graph=indirect_graphs(), seed=st.integers(0, 5))
def test_indirect(directory, device, graph, seed):
    check_drawn(graph, seed, directory, device)


@FEW
@given(graph=masked_graphs(), seed=st.integers(0, 5))
def test_masked(directory, device, graph, seed):
    check_drawn(graph, seed, directory, device)


def test_unsupported_ops_are_named():
    graph = stagewire.load(SAMPLES[0], expect="loop").forward
    assert issubclass(UnsupportedKernel, stagewire.StageError)
    assert emit(graph, Options(target="triton")).target == "triton"


@pytest.mark.parametrize("check", ["check_index", "wrap_index"])
@pytest.mark.parametrize("scatter", [False, True], ids=["read", "written"])
def test_an_index_out_of_range_stays_inside_of_its_operand(directory, device, check, scatter):
    i = Index(0, (Term(1, AxisAtom("i")),))
    far = Index(0, (Term(1, ValueAtom("row")),))
    statements = (
        Load("raw", "at", i, "int64"),
        Compute("row", check, (Ref("raw"), 4), "int64"),
        Load("v", "x", i if scatter else far, "float32"),
        Store("y", far if scatter else i, Ref("v")),
    )
    graph = LoopGraph(
        buffers=(
            Buffer("at", contiguous("int64", (6,)), "input"),
            Buffer("x", contiguous("float32", (6 if scatter else 4,)), "input"),
            Buffer("y", contiguous("float32", (4 if scatter else 6,)), "kernel"),
        ),
        inputs=("at", "x"),
        outputs=(Ref("y"),),
        steps=(Kernel("move", (Axis("i", 6),), (Section((), statements),)),),
    )
    run = load(emit(placed(graph, device), Options(target="triton")), directory)
    outside = torch.tensor([4, 2**40, -5, -(2**40), 3, 0], device=device)
    (found,) = run(outside, torch.ones(6 if scatter else 4, device=device))
    if scatter:
        assert found[[0, 3]].tolist() == [1.0, 1.0]
    else:
        assert found.tolist() == [1.0] * 6
