"""What 500 drawn documents hold: nearly every op of the vocabularies, kernels of several sections, new records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stagewire import vocabulary as vocabularies
from stagewire.codec import Document
from stagewire.graph import Graph
from stagewire.loop import Compute, Kernel, Loop, Reduce, ReduceKind, Scan, ScanKind
from stagewire.loop_ops import OPS
from stagewire.testing.ops import calls, dtypes_of, point_ops, targets
from stagewire.testing.strategies import examples, loops, prims
from stagewire.types import contiguous
from stagewire.verify import verify, verify_graph
from stagewire.vocabulary import Constraint, Op, Vocabulary, parameters

EXAMPLES, LEAST = 500, 0.95
FLOATS = frozenset(("float32", "float64"))


@pytest.fixture(scope="module")
def drawn() -> list[Loop]:
    return examples(loops(), EXAMPLES)


def kernels(document: Loop) -> list[Kernel]:
    directions = [graph for graph in (document.forward, document.backward) if graph is not None]
    return [step for graph in directions for step in graph.steps if isinstance(step, Kernel)]


def test_nearly_every_loop_op_is_drawn(drawn: list[Loop]) -> None:
    statements = [s for d in drawn for kernel in kernels(d) for section in kernel.sections for s in section.statements]
    assert len(OPS.keys() & {s.op for s in statements if isinstance(s, Compute)}) >= LEAST * len(OPS)
    assert {s.reduction for s in statements if isinstance(s, Reduce)} == set(ReduceKind.__args__)  # type: ignore[attr-defined]
    assert {s.scan for s in statements if isinstance(s, Scan)} == set(ScanKind.__args__)  # type: ignore[attr-defined]


def test_a_fifth_of_the_kernels_has_three_sections_and_documents_have_several(drawn: list[Loop]) -> None:
    sections = [len(kernel.sections) for document in drawn for kernel in kernels(document)]
    assert sum(count >= 3 for count in sections) >= len(sections) / 5
    assert sum(len(kernels(document)) >= 2 for document in drawn) >= EXAMPLES / 10
    devices = [{buffer.type.device for buffer in document.forward.buffers} for document in drawn]
    assert sum(len(found) >= 2 for found in devices) >= EXAMPLES / 10


HALVE = Op(
    "halve",
    "others",
    parameters("x: tensor, times: number"),
    "x / 2, so many times.",
    lambda x, times: (contiguous(x.dtype, x.shape, device=x.device),),
    (Constraint("H1", "x is of floats.", lambda x, times: None if x.dtype in FLOATS else x.dtype,
                ("halve", (contiguous("int64", ()), 1)), FLOATS),),
    "halve(x: f32[2, 3], 2) -> f32[2, 3]",
)  # fmt: skip


@pytest.fixture
def another() -> Iterator[str]:
    """A vocabulary of somebody else's, for one test."""
    vocabularies.register(Vocabulary("elsewhere", 1, {"halve": HALVE}, {"others": "Of a test."}))
    yield "elsewhere.halve"
    del vocabularies._REGISTERED["elsewhere"]


def _called(document: Document) -> Counter[str]:
    graphs = [getattr(document, name, None) for name in ("joint", "forward", "backward")]
    return Counter(node.target for graph in graphs if isinstance(graph, Graph) for node in graph.nodes)


def test_a_record_of_somebody_else_is_drawn_by_itself(another: str) -> None:
    assert another in targets()
    assert another in point_ops()
    assert dtypes_of(HALVE) == ["float32", "float64"]
    verify(_first(prims(), lambda document: another in _called(document)))
    verify(_first(loops(), lambda document: another in _computed(document)))


class _Found(Exception):
    """Ends a search."""


def _first(strategy: st.SearchStrategy[Document], wanted: Callable[[Document], bool]) -> Document:
    """The first document of 3,000 that is wanted."""
    found: list[Document] = []

    @settings(max_examples=3000, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def search(document: Document) -> None:
        if wanted(document):
            found.append(document)
            raise _Found

    with pytest.raises(_Found):
        search()
    return found[0]


def _computed(document: Loop) -> set[str]:
    sections = [section for kernel in kernels(document) for section in kernel.sections]
    return {s.op for section in sections for s in section.statements if isinstance(s, Compute)}


@given(st.data())
def test_a_call_on_a_type_that_there_is(data: st.DataObject) -> None:
    """The first operand is of that type if the op takes it, and the call verifies in either case."""
    kind = contiguous(data.draw(st.sampled_from(("float64", "int64"))), (4,))
    graph = data.draw(calls(f"loop.{data.draw(st.sampled_from(sorted(OPS)))}", kind))
    verify_graph(graph)
