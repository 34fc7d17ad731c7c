"""Units of several GPUs, each partition recorded by a stand-in on the CPU: they mean the unit, whatever is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Options, load
from codegen.choices import Bound, Replay
from codegen.runtime.device_partitions import InTurns, partitions_of
from codegen.stage import emit
from codegen.testing.programs import placed, step_graphs
from integration_tests import stand_in
from stagewire.program import made_buffers

DEVICES = ("cuda:0", "cuda:1")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="torch.cuda.is_available(): test_several_gpus.py runs"
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(step_graphs(), st.data())
def test_recorded_partitions_mean_the_unit(
    code_cache: Path, recordings: None, monkeypatch: pytest.MonkeyPatch, graph: Any, data: st.DataObject
) -> None:
    unit = emit(graph, Options())
    names = [*unit.inputs, *(name for one in unit.instructions for name, _, _ in made_buffers(one))]
    where = {name: data.draw(st.sampled_from(DEVICES)) for name in dict.fromkeys(names)}
    partitions = tuple(placed(one, "cpu") for one in partitions_of(placed(unit, where)))
    every = st.frozensets(st.sampled_from(range(len(unit.outputs)))) if unit.outputs else st.just(frozenset())
    some = st.frozensets(st.sampled_from(range(len(unit.inputs)))) if unit.inputs else st.just(frozenset())
    replay = Replay(in_place=data.draw(some), handed=data.draw(every))
    again = lambda one: load(one, code_cache)  # noqa: E731
    run = InTurns(unit, partitions, load(partitions, code_cache) if partitions else ())
    run = run.recorded(replay, lambda one, run, own: stand_in.replayed(one, Bound(run, lambda: one), own, again))
    whole, held = load(unit, code_cache), []
    kept = [torch.randn(type_.shape) / 4 for type_ in unit.input_types]
    for number in range(5):
        inputs = [x if k in replay.in_place else torch.randn(x.shape) / 4 for k, x in enumerate(kept)]
        found, expected = run(list(inputs)), whole(*inputs)
        if data.draw(st.booleans()) or number < 2:
            held.append((found, expected))
        compare(found, expected)
    for found, expected in held:
        compare(found, expected)


def compare(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            assert one.stride() == other.stride()
        else:
            assert one == other
