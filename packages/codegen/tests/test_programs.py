"""Programs of many steps mean what their Loop graph means, however memory is shared; every executor agrees."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Codegen, Options, load
from codegen.runtime import memory_kinds
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.programs import step_graphs
from codegen.testing.reference import run_graph, span
from stagewire.codec import decode, encode
from stagewire.grad import Binding
from stagewire.graph import Ref
from stagewire.loop import Loop
from stagewire.verify import verify

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def check(graph, run, seed):
    generator = torch.Generator().manual_seed(seed)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    inputs = {name: torch.randn(span(types[name]), generator=generator) / 4 for name in graph.inputs}
    given_tensors = [inputs[name].as_strided(types[name].shape, types[name].stride) for name in graph.inputs]
    before = [tensor.clone() for tensor in given_tensors]
    found = run(*given_tensors)
    expected = run_graph(graph, inputs)
    for output, value in zip(graph.outputs, found, strict=True):
        if isinstance(output, Ref):
            flat = value.as_strided((span(types[output.name]),), (1,), value.storage_offset())
            assert_same(flat, expected[output.name])
            assert value.stride() == types[output.name].stride or value.numel() <= 1
        else:
            assert value == output
    assert all(torch.equal(a, b) for a, b in zip(given_tensors, before, strict=True)), "an input was written"
    return found


@EXAMPLES
@given(step_graphs(), st.integers(0, 9), st.sampled_from((None, 0, 64)))
def test_both_executors_mean_the_graph(directory, graph, seed, large):
    """large: bytes from which a buffer is no part of the arena."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_kinds, "LARGE", {} if large is None else {"cpu": large})
        check_executors(directory, graph, seed)


def check_executors(directory, graph, seed):
    unit = emit(graph, Options())
    for executor in ("fast", "reference"):
        run = load(unit, directory, executor=executor)
        first = check(graph, run, seed)
        kept = [value.clone() if isinstance(value, torch.Tensor) else value for value in first]
        check(graph, run, seed + 1)  # results of the first call are not memory of the second
        for value, copy in zip(first, kept, strict=True):
            assert value is None or not isinstance(value, torch.Tensor) or torch.equal(value, copy)


@EXAMPLES
@given(step_graphs())
def test_the_document_is_valid_and_survives_the_codec(graph):
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    unit = emit(graph, Options())
    assert unit.input_types == tuple(types[name] for name in graph.inputs)
    loop = Loop(binding=Binding(inputs=(), outputs=()), forward=graph)
    program = Codegen().run(loop)
    for form in ("json", "msgpack"):
        assert decode(encode(program, form), "program") == program


def test_the_verifier_accepts_programs(tmp_path):
    from pathlib import Path

    from stagewire.codec import load as load_document

    for path in sorted((Path(__file__).parent / "data").glob("*.json")):
        document = load_document(path, expect="loop")
        verify(Codegen().run(document))
