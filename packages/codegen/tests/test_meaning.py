"""Loaded units mean what the reference interpreter of `Loop` means, on generated kernels."""

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Options, load
from codegen.errors import IndexOutOfRange, IntegerDivisionByZero, ValueOutOfRange
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.exact import BOUNDED, assert_identical, exact_buffers
from codegen.testing.guarded_memory import guarded
from codegen.testing.merging import graph_lists, merged, sampled
from codegen.testing.reference import run_graph, span
from codegen.testing.strategies import (
    SYMBOL_VALUES,
    at_value,
    indirect_graphs,
    masked_graphs,
    pointwise_graphs,
    reduction_graphs,
    sample_inputs,
    symbolic_graphs,
)
from codegen.testing.vocabulary import hoisted_graphs, vocabulary_graph
from stagewire.testing.symbolic import BASE

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def check(graph, seed, threshold, executor, directory):
    run = load(emit(graph, Options(parallel_threshold=threshold)), directory, executor=executor)
    compare(run, graph, sample_inputs(graph, seed), at_end=seed % 2 == 0)


def compare(run, graph, inputs, *, at_end, sizes=()):
    """What a graph computes, or the error that it raises; what has one right value is compared bit by bit.

    sizes: what is given to the run in front of the tensors.
    """
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    flat = {name: guarded(inputs[name], at_end=at_end) for name in graph.inputs}
    tensors = [one.as_strided(types[name].shape, types[name].stride) for name, one in flat.items()]
    written = {buffer.reuse: buffer.name for buffer in graph.buffers if buffer.reuse in inputs}
    try:
        expected = run_graph(graph, inputs)
    except (IndexError, RuntimeError):
        with pytest.raises((IndexOutOfRange, IntegerDivisionByZero, ValueOutOfRange)):
            run(*sizes, *tensors)
        after = inputs
    else:
        exact = exact_buffers(graph)
        for output, tensor in zip(graph.outputs, run(*sizes, *tensors), strict=True):
            assert_alike = assert_identical if output.name in exact else assert_same
            assert_alike(tensor.as_strided((span(types[output.name]),), (1,)), expected[output.name])
        after = inputs | {name: expected[by] for name, by in written.items()}
    for name, one in flat.items():
        assert_identical(one, after[name])  # an input was written, or one that is to be written was not


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


@settings(QUICK, max_examples=40)
@given(st.integers(0, 2**64 - 1))
def test_whatever_the_vocabulary_has(directory, number):
    order = random.Random(number)
    graph = vocabulary_graph(order)
    seed, threshold = order.choice((0, 3, 0, 1, 2)), order.choice((1, 1 << 40))
    check(graph, seed, threshold, order.choice(("fast", "reference")), directory)


@settings(QUICK, max_examples=10)
@given(st.integers(0, 2**64 - 1))
def test_numbers_that_bound_what_is_nan_infinite_or_a_zero(directory, number):
    order = random.Random(number)
    check(vocabulary_graph(order, (10, 40), BOUNDED), order.choice((0, 3)), 1 << 40, "fast", directory)


@QUICK
@given(hoisted_graphs(), st.integers(0, 5), threshold, executor)
def test_what_depends_on_few_axes(directory, graph, seed, threshold, executor):
    check(graph, seed, threshold, executor, directory)


ANY_LENGTH = symbolic_graphs(kernels=hoisted_graphs((1, 3, BASE), (BASE - 2, BASE, 3)))


@settings(QUICK, max_examples=40)
@given(ANY_LENGTH, st.sampled_from((1, 4, 0)), threshold, executor)
def test_what_depends_on_few_axes_of_any_length(directory, graph, seed, threshold, executor):
    run = load(emit(graph, Options(parallel_threshold=threshold)), directory, executor=executor)
    for n in SYMBOL_VALUES:
        at = at_value(graph, n)
        compare(run, at, sample_inputs(at, seed), at_end=seed % 2 == 0, sizes=(n,))


@QUICK
@given(indirect_graphs(), st.integers(0, 5), threshold, executor)
def test_indirect(directory, graph, seed, threshold, executor):
    check(graph, seed, threshold, executor, directory)


@QUICK
@given(masked_graphs(), st.integers(0, 5), threshold, executor)
def test_masked(directory, graph, seed, threshold, executor):
    check(graph, seed, threshold, executor, directory)


@settings(QUICK, max_examples=30)
@given(graph_lists(), st.sampled_from((1, 4, 0, 2)), st.sampled_from((30, 100, 300, 1000)), executor,
       st.sampled_from((True, True, True, False)))  # fmt: skip
def test_several_kernels(two_threads, directory, graphs, seed, threshold, executor, updates):
    """Compiled once for all sizes; where an error is raised, no input has been written."""
    graph = merged(graphs, updates=updates)
    run = load(emit(graph, Options(parallel_threshold=threshold)), directory, executor=executor)
    for n in SYMBOL_VALUES[: None if graph.symbols else 1]:
        at = at_value(graph, n) if graph.symbols else graph
        compare(run, at, sampled(graphs, n, seed), at_end=seed % 2 == 0, sizes=(n,) * len(graph.symbols))


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError):
        assert_same(torch.tensor([1.0]), torch.tensor([1.001]))
