"""interpret(stage(d)) == interpret(d), for the whole stage and with passes left out."""

from __future__ import annotations

from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loopir.interpret
from loopir.interpret import Memory, interpret, run_kernel
from loopir.passes.fuse_nests import FuseNests
from loopir.passes.merge_nests import Limits
from loopir.passes.pad_products import Gain, PadOperands, PadResults
from loopir.passes.split_reductions import SplitReductions
from loopir.passes.sum_over_rows import SumOverRows
from loopir.pipeline import KERNEL_PASSES, PASSES, UNFUSED
from loopir.schedule import substitute_axes
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.graph_builder import Scenario, assert_same
from loopir.testing.irregular_steps import FAMILIES
from loopir.testing.prim_meaning import prim_meaning
from loopir.testing.strategies import family_scenarios, prim_scenarios, selections
from stagewire import index as ix
from stagewire.loop import Free, Kernel, Loop, Store
from stagewire.statements import points_of, statements_of
from stagewire.verify import verify

GENERATED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))

MOST_POINTS = 50


def check(scenario: Scenario, options: Options) -> Loop:
    """The stage's result verifies, and gives the same bits as the prims; inputs are left alone."""
    loop = LoopIR().run(scenario.document(), options)
    verify(loop)
    expected = prim_meaning(scenario.graph, scenario.inputs, EXTERNS)
    found = interpret(loop.forward, scenario.inputs, EXTERNS)
    assert_same(found, expected, scenario.close)
    with mock.patch.object(loopir.interpret, "run_kernel", run_from_the_end):
        assert_same(interpret(loop.forward, scenario.inputs, EXTERNS), expected, scenario.close)
    return loop


def run_from_the_end(kernel: Kernel, memory: Memory) -> None:
    """Run the points of a kernel in another order: one by one, the last first. Where there are many, rows of them."""
    modes = {statement.mode for statement in statements_of(kernel) if isinstance(statement, Store)}
    points = points_of(kernel.axes)
    if not kernel.axes or not isinstance(points, int) or points == 0 or "sum" in modes:
        run_kernel(kernel, memory)
        return
    first = kernel.axes[0]
    run = run_from_the_end if points <= MOST_POINTS else run_kernel
    for number in reversed(range(first.size)):  # type: ignore[arg-type]
        run(substitute_axes(kernel, {first.name: ix.constant(number)}, {first.name: ()}), memory)


@pytest.mark.parametrize("family", FAMILIES)
@GENERATED
@given(st.data())
def test_the_stage_preserves_meaning(family: str, data: st.DataObject) -> None:
    check(data.draw(family_scenarios(family)), Options())


@pytest.mark.parametrize("family", FAMILIES)
@GENERATED
@given(st.data())
def test_one_kernel_a_prim(family: str, data: st.DataObject) -> None:
    check(data.draw(family_scenarios(family)), Options(passes=UNFUSED, kernel_passes=()))


@GENERATED
@given(prim_scenarios(), selections())
def test_any_selection_of_passes_preserves_meaning(scenario: Scenario, options: Options) -> None:
    check(scenario, options)


@GENERATED
@given(prim_scenarios())
def test_each_kernel_pass_preserves_the_meaning_of_loops(scenario: Scenario) -> None:
    """On Loop documents as the schedule passes leave them, and as one kernel a prim gives them."""
    for passes in (PASSES, UNFUSED):
        loop = LoopIR().run(scenario.document(), Options(passes=passes, kernel_passes=()))
        expected = interpret(loop.forward, scenario.inputs, EXTERNS)
        for kernel_pass in KERNEL_PASSES:
            changed = msgspec.structs.replace(loop, forward=kernel_pass.run(loop.forward))
            verify(changed)
            assert_same(interpret(changed.forward, scenario.inputs, EXTERNS), expected, scenario.close)


@pytest.mark.parametrize("family", ["anything", "rows", "products"])
@settings(GENERATED, max_examples=120)
@given(st.data())
def test_what_pays_for_large_sizes_alone_preserves_meaning(family: str, data: st.DataObject) -> None:
    """With limits so low that small examples meet them."""
    scenario = data.draw(
        prim_scenarios(FAMILIES[family], among=(1, 2, 3, 4, 6, 8, 12, 24), devices=("cpu", "cuda:0", "cuda:0"))
    )
    points, shortest = data.draw(st.sampled_from((4, 64))), data.draw(st.sampled_from((1, 2)))
    gain = Gain(saved=data.draw(st.sampled_from((1.0, 5e-8))))
    chosen = (
        SplitReductions(points=points, columns=64, long_row=0, parts=2, shortest=shortest, shortest_column=shortest),
        FuseNests(limits=Limits(outer_points=2), gpu_limits=Limits(outer_points=8, inner_points=4), least_bytes=1),
        SumOverRows(programs=8, least=2, rows=2),
        PadResults(gain=gain),
        PadOperands(gain=gain),
    )
    by_name = {one.name: one for one in chosen}
    check(scenario, Options(passes=tuple(by_name.get(p.name, p) for p in PASSES)))


@GENERATED
@given(prim_scenarios(FAMILIES["updates"], devices=("cpu",)), st.data())
def test_a_run_that_raises_has_changed_no_input(scenario: Scenario, data: st.DataObject) -> None:
    """An index is out of range. (Kernels of a GPU cannot raise.)"""
    names = [value.name for value in scenario.graph.inputs]
    wrong = [name for name in scenario.indexed if scenario.inputs[names.index(name)].size]
    if not wrong:
        return
    name = data.draw(st.sampled_from(wrong))
    inputs = [array.copy() for array in scenario.inputs]
    inputs[names.index(name)] = np.full_like(inputs[names.index(name)], scenario.indexed[name][1])
    graph = LoopIR().run(scenario.document()).forward
    memory = Memory(graph.buffers, {})
    for one, array in zip(graph.inputs, inputs, strict=True):
        memory.set(one, array)
    try:
        for step in graph.steps:
            if isinstance(step, Kernel):
                run_kernel(step, memory)
            elif isinstance(step, Free):
                memory.free(step.buffer)
    except IndexError:
        for one, array in zip(graph.inputs, inputs, strict=True):
            np.testing.assert_array_equal(memory.get(one), array)
