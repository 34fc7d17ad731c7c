"""What the strategies draw verifies, and survives bytes and text: properties of codec, printer, parser and digest."""

from __future__ import annotations

import typing
from collections import Counter
from typing import TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagewire.capture import Guard, InputRole
from stagewire.codec import KINDS, Document, decode, encode
from stagewire.digest import digest
from stagewire.errors import StageError, UnknownVersion
from stagewire.grad import Binding, Grad
from stagewire.graph import Arg, Graph, Node
from stagewire.loop import Kernel, Reduce
from stagewire.notation import fields_of
from stagewire.parser import parse_document, parse_graph
from stagewire.prim import Prim
from stagewire.printer import print_document, print_graph
from stagewire.program import Allocate, Instruction
from stagewire.testing.basics import args
from stagewire.testing.captures import guards
from stagewire.testing.graphs import ATEN_OPS, graphs
from stagewire.testing.loops import loop_graphs
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
def test_meaningful_graphs_hold_elementwise_calls_only(document: Grad) -> None:
    known = dict(ATEN_OPS)
    for node in document.joint.nodes:
        assert known[node.target] == len(node.args)
        assert len(node.results) == 1


def test_meaningful_refuses_what_has_no_graph() -> None:
    with pytest.raises(UnknownVersion, match="no vocabulary for 'loop'"):
        meaningful("loop")


T = TypeVar("T")


def collected(strategy: st.SearchStrategy[T], examples: int = 60) -> list[T]:
    """What the strategy draws in one run without a memory of earlier runs."""
    found: list[T] = []

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def collect(document: T) -> None:
        found.append(document)

    collect()
    return found


def test_grads_and_prims_reach_every_part_of_the_binding() -> None:
    """Both directions, joint graphs, symbols, mutations, views: every field is set somewhere."""
    cut = collected(prims(), 500)
    for kind, values in ((Grad, collected(grads(), 100)), (Prim, cut), (Binding, [one.binding for one in cut])):
        for field in fields_of(kind):
            default = () if field.required else field.default
            assert any(getattr(value, field.name) not in (default, ()) for value in values), field.name


def test_captures_reach_every_guard_and_role() -> None:
    assert {type(guard) for guard in collected(guards(("s0",)), 300)} == set(typing.get_args(Guard))
    found = collected(captures(), 200)
    assert any(document.guards for document in found)
    assert {item.role for document in found for item in document.inputs} == set(typing.get_args(InputRole))
    assert {document.portable for document in found} == {True, False}


def test_programs_reach_every_instruction() -> None:
    found = collected(units([contiguous("float32", (2, 3))], least_steps=4), 400)
    instructions = [item for unit in found for item in unit.instructions]
    assert {type(item) for item in instructions} == set(typing.get_args(Instruction))
    assert any(isinstance(item, Allocate) and item.reuse is not None for item in instructions)


def test_loops_reach_every_statement() -> None:
    """Kernels of every form are drawn, not only empty graphs."""
    seen: Counter[str] = Counter()

    for graph in collected(loop_graphs([contiguous("float32", (2, 3))], least_steps=3, most_steps=6), 150):
        for buffer in graph.buffers:
            seen[buffer.role] += 1
            seen["reuse"] += buffer.reuse is not None
        for step in graph.steps:
            seen[type(step).__name__] += 1
            for section in step.sections if isinstance(step, Kernel) else ():
                for statement in section.statements:
                    seen[type(statement).__name__] += 1
                    seen["mask"] += getattr(statement, "mask", None) is not None
                    seen["welford"] += isinstance(statement, Reduce) and statement.reduction == "welford"
    wanted = {"input", "kernel", "extern", "view", "reuse", "Kernel", "Extern", "Free", "mask", "welford"}
    wanted |= {"Load", "Store", "Compute", "IndexValue", "Reduce", "Scan"}
    assert wanted <= {name for name, count in seen.items() if count}
