"""The pipeline starts and stops at any document, refuses wrong stages, and reports what ran."""

from __future__ import annotations

from typing import Any

import pytest

import stagewire
from stagefold.errors import BadOption, BadStage, UnknownStage
from stagefold.options import Options, parse_options
from stagefold.pipeline import Event, FunctionStage, Pipeline, resolve_stage
from stagewire.capture import Capture, Code, Input, Local
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.types import contiguous


def capture() -> Capture:
    value = Value("x", contiguous("float32", (4,)))
    node = Node("torch.relu", (Ref("x"),), {}, (Value("y", value.type),))
    graph = Graph((value,), (node,), (Ref("y"),))
    return Capture(code=Code("f", "a.py", 1), inputs=(Input(value, Local("x")),), graph=graph)


def test_every_boundary_is_a_stop_and_a_start() -> None:
    pipeline = Pipeline.build(Options(verify=True))
    document: Any = capture()
    for kind in ("grad", "prim", "loop", "program"):
        direct = pipeline.run(capture(), until=kind)
        document = pipeline.run(document, until=kind)
        assert document == direct


def test_events_name_the_stages_in_order() -> None:
    seen: list[Event] = []
    Pipeline.build(Options()).run(capture(), observe=seen.append)
    assert [event.stage for event in seen] == ["aotgrad", "primops", "loopir", "codegen"]
    assert all(event.seconds >= 0 for event in seen)


def test_it_does_not_run_backwards() -> None:
    pipeline = Pipeline.build(Options())
    prim = pipeline.run(capture(), until="prim")
    with pytest.raises(BadStage, match="cannot be carried"):
        pipeline.run(prim, until="grad")


def test_a_function_is_a_stage_and_is_not_cached() -> None:
    def mine(prim: stagewire.Prim) -> stagewire.Loop:
        raise NotImplementedError

    stage = resolve_stage("loopir", mine)
    assert isinstance(stage, FunctionStage)
    assert not Pipeline.build(Options(), {"loopir": mine}).is_portable
    assert Pipeline.build(Options()).is_portable


def test_refusals() -> None:
    with pytest.raises(UnknownStage, match="slots are"):
        resolve_stage("fuse", lambda d: d)
    with pytest.raises(BadStage, match="turns capture into grad"):
        resolve_stage("loopir", resolve_stage("aotgrad", lambda d: d))
    with pytest.raises(BadOption, match=r"codegen.*no_such"):
        Pipeline.build(parse_options(None, {"codegen.no_such": 1}))


def test_a_function_in_the_options_is_not_cached() -> None:
    def everything(joint: object) -> object:
        raise AssertionError("not called here")

    assert Pipeline.build(parse_options(None, {"aotgrad.partitioner": "save_everything"})).is_portable
    assert not Pipeline.build(parse_options(None, {"aotgrad.partitioner": everything})).is_portable
