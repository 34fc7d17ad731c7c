"""Loaded units mean what the reference interpreter of `Loop` means, on generated kernels."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.reference import run_graph, span
from codegen.testing.strategies import indirect_graphs, masked_graphs, pointwise_graphs, reduction_graphs, sample_inputs

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def check(graph, seed, threshold, executor, directory):
    inputs = sample_inputs(graph, seed)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    run = load(emit(graph, Options(parallel_threshold=threshold)), directory, executor=executor)
    tensors = [inputs[name].as_strided(types[name].shape, types[name].stride) for name in graph.inputs]
    found = run(*tensors)
    expected = run_graph(graph, inputs)
    for output, tensor in zip(graph.outputs, found, strict=True):
        flat = tensor.as_strided((span(types[output.name]),), (1,))
        assert_same(flat, expected[output.name])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("code")


threshold = st.sampled_from((1, 1 << 40))
executor = st.sampled_from(("fast", "reference"))


@QUICK
@given(pointwise_graphs(), st.integers(0, 5), threshold, executor)
def test_pointwise(directory, graph, seed, threshold, executor):
    check(graph, seed, threshold, executor, directory)


@QUICK
@given(reduction_graphs(), st.integers(0, 5), threshold, executor)
def test_reductions(directory, graph, seed, threshold, executor):
    check(graph, seed, threshold, executor, directory)


@QUICK
@given(indirect_graphs(), st.integers(0, 5), threshold, executor)
def test_indirect(directory, graph, seed, threshold, executor):
    check(graph, seed, threshold, executor, directory)


@QUICK
@given(masked_graphs(), st.integers(0, 5), threshold, executor)
def test_masked(directory, graph, seed, threshold, executor):
    check(graph, seed, threshold, executor, directory)


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError):
        assert_same(torch.tensor([1.0]), torch.tensor([1.001]))
