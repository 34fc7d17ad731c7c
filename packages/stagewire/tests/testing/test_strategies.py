"""What the strategies draw verifies, and survives bytes and text: properties of codec, printer, parser and digest."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from stagewire.capture import Capture, CustomFunction, Guard, InputRole
from stagewire.codec import KINDS, Document, decode, encode
from stagewire.digest import digest
from stagewire.errors import StageError, UnknownVersion
from stagewire.grad import Binding, Grad
from stagewire.graph import Arg, Graph, Node
from stagewire.loop import Compute, Extern, Free, IndexValue, Kernel, Load, LoopGraph, Reduce, Scan, Store
from stagewire.notation import fields_of
from stagewire.parser import parse_document, parse_graph
from stagewire.prim import Prim
from stagewire.printer import print_document, print_graph
from stagewire.program import Allocate, Instruction, Unit
from stagewire.testing.basics import args
from stagewire.testing.captures import control_flow, guards
from stagewire.testing.graphs import ATEN_OPS, graphs
from stagewire.testing.loops import loop_graphs
from stagewire.testing.ops import operator_targets
from stagewire.testing.programs import units
from stagewire.testing.strategies import captures, documents, grads, meaningful, prims
from stagewire.types import contiguous
from stagewire.verify import faults, verify

thorough = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", KINDS)
def test_strategies_draw_valid_documents(kind: str) -> None:
    @thorough
    @given(documents(kind))
    def check(document: Document) -> None:
        verify(document)

    check()


def test_functions_of_control_flow_are_valid() -> None:
    """One capture in eight has one: too few for the test above."""

    @settings(thorough, max_examples=300)
    @given(captures(), control_flow("first"))
    def check(document: Capture, function: CustomFunction) -> None:
        verify(msgspec.structs.replace(document, functions=(function,)))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_property_bytes_bring_the_document_back(kind: str) -> None:
    @thorough
    @given(documents(kind))
    def check(document: Document) -> None:
        for format in ("json", "msgpack"):
            data = encode(document, format)  # type: ignore[arg-type]
            again = decode(data, expect=kind)
            assert again == document
            assert encode(again, format) == data  # type: ignore[arg-type] # == does not tell 1 from True
            assert digest(again) == digest(document)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_property_text_brings_the_document_back(kind: str) -> None:
    @thorough
    @given(documents(kind))
    def check(document: Document) -> None:
        text = print_document(document)
        again = parse_document(text)
        assert again == document
        assert encode(again) == encode(document)
        assert print_document(again) == text

    check()


@thorough
@given(graphs())
def test_property_graphs_print_and_parse(graph: Graph) -> None:
    assert parse_graph(print_graph(graph)) == graph


@thorough
@given(args(("a", "b c"), ("s0",)))
def test_property_arguments_print_and_parse(arg: Arg) -> None:
    graph = Graph((), (Node("f", (arg,), {"k": arg}, ()),), ())
    (node,) = parse_graph(print_graph(graph)).nodes
    assert msgspec.json.encode(node.args) == msgspec.json.encode((arg,))
    assert node.kwargs == {"k": arg}


@thorough
@given(documents(), st.data())
def test_property_a_changed_byte_is_refused_or_read(document: Document, data: st.DataObject) -> None:
    """No byte makes the decoder or the verifier fail in an unforeseen way."""
    raw = bytearray(encode(document, data.draw(st.sampled_from(["json", "msgpack"]))))  # type: ignore[arg-type]
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(raw))
        list(faults(found))
        print_document(found)
        digest(found)
    except StageError:
        return


@thorough
@given(documents(), st.data())
def test_property_a_changed_character_is_refused_or_read(document: Document, data: st.DataObject) -> None:
    text = print_document(document)
    at = data.draw(st.integers(0, len(text) - 1))
    text = text[:at] + data.draw(st.sampled_from('(){}[]%",.:=+-*/#_0a \n|')) + text[at + 1 :]
    try:
        found = parse_document(text)
    except StageError:
        return
    assert parse_document(print_document(found)) == found


@thorough
@given(grads(vocabulary=meaningful("grad")))
def test_meaningful_graphs_call_what_has_a_meaning(document: Grad) -> None:
    """Elementwise ops, operators that have an example, and zeros for their operands."""
    known, others = dict(ATEN_OPS), {*operator_targets(), "aten.zeros.default"}
    for node in document.joint.nodes:
        assert node.target in others or (known[node.target], 1) == (len(node.args), len(node.results))


def test_meaningful_refuses_what_has_no_graph() -> None:
    with pytest.raises(UnknownVersion, match="no vocabulary for 'loop'"):
        meaningful("loop")


T = TypeVar("T")


def missing(
    strategy: st.SearchStrategy[T],
    features: Callable[[T], Iterable[object]],
    wanted: set[Any],
) -> set[Any]:
    """What no draw has of `wanted`: drawing goes on until all of it was seen.

    What a number of draws reaches depends on the modules that are loaded, of which Hypothesis takes constants.
    """
    left = set(wanted)

    def last(value: T) -> bool:
        left.difference_update(features(value))
        return not left

    patient = settings(
        max_examples=5000,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        find(strategy, last, settings=patient)
    except NoSuchExample:
        return left
    return set()


def fields_set(value: object) -> list[object]:
    """The fields of a struct that hold something else than their default."""
    kind = type(value)
    return [
        (kind, field.name)
        for field in fields_of(kind)
        if getattr(value, field.name) not in (() if field.required else field.default, ())
    ]


def test_grads_and_prims_reach_every_part_of_the_binding() -> None:
    """Both directions, joint graphs, symbols, mutations, views: every field is set somewhere."""
    wanted: dict[type, set[object]] = {
        kind: {(kind, field.name) for field in fields_of(kind)} for kind in (Grad, Prim, Binding)
    }
    assert not missing(grads(), fields_set, wanted[Grad])
    both = wanted[Prim] | wanted[Binding]
    assert not missing(prims(), lambda document: fields_set(document) + fields_set(document.binding), both)


def test_captures_reach_every_guard_and_role() -> None:
    assert not missing(guards(("s0",)), lambda guard: [type(guard)], set(typing.get_args(Guard)))

    def features(document: Capture) -> list[object]:
        return ["guards"] * bool(document.guards) + [item.role for item in document.inputs] + [document.portable]

    assert not missing(captures(), features, {"guards", *typing.get_args(InputRole), True, False})


def test_programs_reach_every_instruction() -> None:
    def features(unit: Unit) -> list[object]:
        reuse = any(isinstance(item, Allocate) and item.reuse is not None for item in unit.instructions)
        return [type(item) for item in unit.instructions] + ["reuse"] * reuse

    units_of_four = units([contiguous("float32", (2, 3))], least_steps=4)
    assert not missing(units_of_four, features, {"reuse", *typing.get_args(Instruction)})


def test_loops_reach_every_statement() -> None:
    """Kernels of every form are drawn, not only empty graphs."""

    def features(graph: LoopGraph) -> Iterator[object]:
        for buffer in graph.buffers:
            yield buffer.role
            yield "reuse" if buffer.reuse is not None else None
        for step in graph.steps:
            yield type(step)
            for section in step.sections if isinstance(step, Kernel) else ():
                for statement in section.statements:
                    yield type(statement)
                    yield "mask" if getattr(statement, "mask", None) is not None else None
                    yield statement.reduction if isinstance(statement, Reduce) else None

    wanted = {"input", "kernel", "extern", "view", "reuse", "mask", "welford"}
    steps = {Kernel, Extern, Free, Load, Store, Compute, IndexValue, Reduce, Scan}
    drawn = loop_graphs([contiguous("float32", (2, 3))], least_steps=3, most_steps=6)
    assert not missing(drawn, features, wanted | steps)
