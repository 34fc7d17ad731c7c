"""The pipeline starts and stops at any document, refuses wrong stages, and reports what ran."""

from __future__ import annotations

from typing import Any

import pytest

import stagewire
from stagefold.errors import BadOption, BadStage, UnknownStage
from stagefold.options import Options, parse_options
from stagefold.pipeline import BOUNDARIES, Event, FunctionStage, Pipeline, resolve_stage
from stagewire.capture import Capture, Code, Input, Local
from stagewire.errors import Misplaced
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
    for kind in ("grad", "prim", "cut", "loop", "program"):
        direct = pipeline.run(capture(), until=kind)
        document = pipeline.run(document, until=kind)
        assert document == direct


def test_events_name_the_stages_in_order() -> None:
    seen: list[Event] = []
    Pipeline.build(Options()).run(capture(), observe=seen.append)
    assert [event.stage for event in seen] == ["aotgrad", "primops", "partition", "loopir", "codegen"]
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
    with pytest.raises(BadStage, match="turns prim into prim"):
        resolve_stage("loopir", resolve_stage("partition", lambda d: d))
    with pytest.raises(BadOption, match=r"codegen.*no_such"):
        Pipeline.build(parse_options(None, {"codegen.no_such": 1}))
    with pytest.raises(BadOption, match=r"has no option 'kep'\n  fix: Did you mean 'primops.keep'\? Known: keep, "):
        Pipeline.build(parse_options(None, {"primops.kep": ()}))


def test_a_document_of_the_right_kind_at_the_wrong_place_is_refused() -> None:
    def uncut(prim: stagewire.Prim) -> stagewire.Prim:
        return prim

    with pytest.raises(BadStage, match="in slot 'partition' returned a prim, not a cut"):
        Pipeline.build(Options(), {"partition": uncut}).run(capture())

    def cut_already(grad: stagewire.Grad) -> stagewire.Prim:
        return stagewire.Prim(binding=grad.binding, forward=grad.joint)

    with pytest.raises(BadStage, match="in slot 'primops' returned a cut, not a prim"):
        Pipeline.build(Options(), {"primops": cut_already}).run(capture())
    pipeline = Pipeline.build(Options())
    documents = {form: pipeline.run(capture(), until=form) for form in ("grad", "prim", "cut")}
    for slot, stage, _ in pipeline.stages:
        for form, document in documents.items():
            if form != BOUNDARIES[slot][0]:
                with pytest.raises(Misplaced, match=f"{slot} reads a {BOUNDARIES[slot][0]} document; this is a {form}"):
                    stage.run(document)


def test_options_of_a_stage_change_where_it_has_them() -> None:
    pipeline = Pipeline.build(Options())
    changed = pipeline.with_facts(random_threads=512, nowhere=3)
    assert changed.stages[1][2].random_threads == 512
    assert pipeline.with_facts(random_threads=0) == pipeline
    timed = Pipeline.build(parse_options("max-autotune-no-cudagraphs", None)).stages[-1][2]
    assert timed.autotune == "time"
    kept = Pipeline.build(parse_options(None, {"autotune": True, "codegen.autotune": "off"})).stages[-1][2]
    assert kept.autotune == "off"


def test_a_function_in_the_options_is_not_cached() -> None:
    def everything(joint: object) -> object:
        raise AssertionError("not called here")

    assert Pipeline.build(parse_options(None, {"partition.partitioner": "save_everything"})).is_portable
    assert not Pipeline.build(parse_options(None, {"partition.partitioner": everything})).is_portable
