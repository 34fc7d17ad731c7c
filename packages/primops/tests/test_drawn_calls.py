"""Decompositions against eager ATen on calls of torch's operators, forward and backward, as they are and altered.

Each is lowered for the CPU, some for a GPU (and interpreted here) and with a symbol for a size.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves, tree_map

pytest.importorskip("torch.testing._internal.common_methods_invocations", reason="needs the testing extra")

from absint.schema import record_of
from absint.targets import resolve
from absint.testing.drawn_calls import (
    PARTS,
    REFUSALS,
    Call,
    altered,
    in_steps,
    is_backward,
    recorded_calls,
    resized,
    run,
    runs,
    seeds,
    sizes_of,
    symbolic,
    trusts,
)
from absint.testing.schema_samples import schema_samples
from primops.decompositions import TABLE
from primops.exactness import bound, is_exact
from primops.interpret import interpret, tensor_type
from primops.prims.layouts import HALVES
from primops.stage import Options, lower_graph
from primops.testing.opinfo import (
    UNDEFINED,
    Outcome,
    comparable,
    compare_call,
    compare_results,
    describe,
    graph_of,
    on_device,
    plain,
    run_as_graph,
)
from stagewire.errors import StageError
from stagewire.types import NoneType, ValueType
from stagewire.verify import verify_graph

GPU = "cuda:0"
SEEDS = range(4)
"""Few, each of which is known to do: others may find operands of which eager itself makes what nobody wants."""
AMONG, KEPT, TRIED = 240, 100, 4
"""Samples of a row of the database that are looked at, calls of an operator that are kept, and that a test tries."""
MISREAD = ("aten.binary_cross_entropy.", "aten.native_group_norm_backward.")
"""Operators that take operands of other layouts or shapes than their public functions pass on for such ones."""
UNWRITTEN = ("aten.multi_margin_loss.",)
"""Of no rows, eager's result is memory that nobody has written."""
WELFORD = ("aten.std_mean.", "aten.var_mean.")
"""Their mean of infinite numbers is nan in eager."""


def is_checked(target: str) -> bool:
    return target in TABLE and not target.startswith((*UNDEFINED, *MISREAD))


TARGETS = sorted(filter(is_checked, TABLE))


def check(call: Call) -> None:
    """Values, dtypes and shapes are eager's; every bit, where the record says so (but of lists of mixed dtypes)."""
    expected = expected_of(call)
    if expected is not None:
        outcome = Outcome()
        torch.manual_seed(0)
        compare_call(outcome, call.target, call.args, call.kwargs, expected)
        assert not outcome.faults, f"{call.target}: {outcome.faults[0]}"
        if bound(call.target) == (0, 0) and any(outcome.ulps.values()) and "_foreach_" not in call.target:
            graph, _ = graph_of(call.target, plain(call.args), plain(call.kwargs), types_of(expected))
            exact = is_exact(call.target, lower_graph(graph).nodes) and is_steady(call, expected)
            assert not exact, f"{call.target}: {outcome.ulps} ulps off, {describe(*call[1:])}"


def expected_of(call: Call) -> list[Any] | None:
    """What eager gives; None where it refuses, where documents have no such value, and where nan or infinity of the
    operands become something else in its vectors than they do one by one."""
    try:
        made = run(call)
    except REFUSALS:
        return None
    results = list(made) if isinstance(made, tuple | list) else [made]
    leaves = [x for x in tree_leaves((call.args, call.kwargs, results)) if isinstance(x, torch.Tensor)]
    if call.target.startswith(UNWRITTEN) and not all(x.numel() for x in leaves):
        return None
    if not comparable(leaves) or any(size < 0 for x in leaves for size in x.shape):
        return None
    hostile = any(x.is_floating_point() and not x.isfinite().all() for x in leaves)
    hostile |= any(isinstance(x, float) and not math.isfinite(x) for x in tree_leaves((call.args, call.kwargs)))
    return None if hostile and (call.target.startswith(WELFORD) or not is_steady(call, results)) else results


def is_steady(call: Call, results: list[Any]) -> bool:
    try:
        other = tree_leaves(run(in_steps(call)))
    except REFUSALS:
        return True
    return all(a is b is None or torch.equal(bits(a), bits(b)) for a, b in zip(other, results, strict=True))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    wide = tensor.contiguous().nan_to_num(7.0) if tensor.is_floating_point() else tensor
    return wide.double() if wide.is_floating_point() else wide


def check_on_a_gpu(call: Call) -> None:
    """The nodes that the call becomes on a GPU mean the same here; those that draw are of their types."""
    expected = expected_of(call)
    if expected is not None:
        found = run_as_graph(call.target, plain(call.args), plain(call.kwargs), types_of(expected), device=GPU)
        if found is not None and record_of(resolve(call.target)).effect != "draws":
            faults = compare_results(call.target, call.args, call.kwargs, found, expected)
            assert not faults, f"{call.target} on a GPU: {faults[0]}"


def check_with_a_symbol(call: Call, order: random.Random) -> None:
    sizes = sizes_of(call)
    if not sizes:
        return
    old = order.choice(sizes)
    try:
        found = symbolic(call, old)
    except (*REFUSALS, StageError):
        return
    graph, _ = graph_of(call.target, plain(found.args), plain(found.kwargs), types=found.results)
    lowered = lower_graph(graph)
    if [node.target for node in lowered.nodes] == [call.target]:
        return
    verify_graph(lowered)
    for new in filter(found.accepts, (old, old + 1, 2 * old, old - 1)):
        other = resized(call, old, new)
        expected = expected_of(other)
        if expected is not None:
            _, operands = graph_of(other.target, plain(other.args), plain(other.kwargs), types_of(expected))
            torch.manual_seed(0)
            made = interpret(lowered, operands)
            faults = compare_results(call.target, other.args, other.kwargs, made, expected)
            assert not faults, f"{call.target} where {old} is n and n is {new}: {faults[0]}"


def types_of(results: list[Any]) -> tuple[ValueType, ...]:
    return tuple([NoneType() if x is None else tensor_type(x) for x in results])


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=2)
@given(seed=seeds)
def test_calls_of_the_database(part: int, seed: int) -> None:
    order = random.Random(seed)
    for target, calls in recorded_calls(part, PARTS).items():
        for call in calls if is_checked(target) else ():
            check(altered(call, order))


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_on_a_gpu_and_with_symbolic_sizes(part: int, seed: int) -> None:
    order = random.Random(seed)
    for target, calls in recorded_calls(part, PARTS).items():
        if is_checked(target):
            check_on_a_gpu(altered(order.choice(calls), order))
            if not (trusts(target) or is_backward(target)):
                check_with_a_symbol(order.choice(calls), order)


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=2)
@given(seed=seeds)
def test_calls_off_the_schemas(part: int, seed: int) -> None:
    order = random.Random(seed)
    for target in TARGETS[part::PARTS]:
        for args, kwargs in schema_samples(target):
            call = altered(Call(target, args, kwargs), order)
            check(call)
            if order.random() < 0.5:
                check_on_a_gpu(call)


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=st.sampled_from(SEEDS[:1]))
def test_calls_in_each_dtype_keep_to_their_bounds(part: int, seed: int) -> None:
    order = random.Random(seed)
    for target, calls in recorded_calls(part, PARTS, AMONG, KEPT).items():
        if target in TABLE and not target.startswith(UNDEFINED) and "_foreach_" not in target:
            for call in order.sample(calls, min(len(calls), TRIED)):
                check_bounds(altered(call, order, ("floats",)))


def check_bounds(call: Call) -> None:
    expected = expected_of(call)
    if expected is not None:
        outcome = Outcome()
        torch.manual_seed(0)
        compare_call(outcome, *call, expected)
        assert not outcome.faults, f"{call}: {outcome.faults[0]}"
        for name, ulps in outcome.ulps.items():
            assert ulps <= bound(call.target)[name in HALVES], f"{call} in {name}"


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=4)
@given(seed=st.sampled_from(SEEDS))
def test_pointwise_calls_of_many_numbers(part: int, seed: int) -> None:
    """In each floating-point dtype, of all magnitudes."""
    order = random.Random(seed)
    for target in TARGETS[part::PARTS]:
        for args, kwargs in schema_samples(target) if torch.Tag.pointwise in resolve(target).tags else ():
            call = altered(Call(target, args, kwargs), order, ("floats",))
            check(altered(call, order, ("magnitudes", "magnitudes", "values"), most=2))


CHECKED = ("index", "gather.", "scatter", "take", "put.", "embedding.", "multi_margin_loss.")
"""Names of operators of which eager looks at each position; of others it reads or writes beyond their operands."""


@pytest.mark.parametrize("target", [one for one in TARGETS if one.removeprefix("aten.").startswith(CHECKED)])
@settings(runs, max_examples=6)
@given(seed=seeds)
def test_positions_from_the_end_and_out_of_range(target: str, seed: int) -> None:
    """They are refused, or mean, what they do in eager."""
    order = random.Random(seed)
    for call in (Call(target, *sample) for sample in schema_samples(target)):
        expected = expected_of(call)
        tensors = [x for x in tree_leaves((call.args, call.kwargs)) if isinstance(x, torch.Tensor)]
        positions = [x for x in tensors if x.dtype in (torch.int64, torch.int32) and x.numel()]
        if expected is None or not positions:
            continue
        changed = order.choice(positions)
        moved = changed.clone()
        moved.view(-1)[order.randrange(moved.numel())] = order.choice((-1, -1, -2, 1, 100, -100))
        other = Call(target, *tree_map(lambda x: moved if x is changed else x, (call.args, call.kwargs)))  # noqa: B023
        try:
            wanted = run(other)
        except REFUSALS:
            wanted = None
        try:
            found = run_as_graph(target, plain(other.args), plain(other.kwargs), types_of(expected))
        except REFUSALS:
            assert wanted is None, f"{other} is refused"
            continue
        if found is not None:
            assert wanted is not None, f"{other} is not refused"
            results = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
            faults = compare_results(target, other.args, other.kwargs, found, results)
            assert not faults, f"{other}: {faults[0]}"


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_each_decomposition_takes_some_call(part: int, seed: int) -> None:
    """One that declines them all is none."""
    order = random.Random(seed)
    for target in TARGETS[part::PARTS]:
        samples = [Call(target, *sample) for sample in schema_samples(target)]
        calls = [call for call in samples if any(x.numel() for x in expected_of(call) or ())]
        order.shuffle(calls)
        assert not calls or target in DECLINING or any(map(is_decomposed, calls)), f"{target} is left to ATen"


def is_decomposed(call: Call) -> bool:
    """On a CPU or on a GPU."""
    expected = expected_of(call)
    if expected is None:
        return False
    graph, _ = graph_of(call.target, plain(call.args), plain(call.kwargs), types_of(expected))
    lowered = [lower_graph(graph), lower_graph(on_device(graph, "cpu", GPU), options=Options(random_threads=1024))]
    return any([node.target for node in one.nodes] != [call.target] for one in lowered)


DECLINING = ("aten._efficientzerotensor.default", "aten.addmm.default", "aten.index_fill.int_Tensor", "aten.mm.default")
"""Decompositions whose samples are all of a kind that stays with ATen."""
