"""Programs made at run time: one for all sizes that it holds for, one each for others."""

from __future__ import annotations

from typing import Any

import torch

from stagefold.size_specialisation import SizeSpecialisations, with_sizes
from stagewire.capture import Capture, Code, Input, Local, Relation, Symbol
from stagewire.expr import symbol
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.types import contiguous

N = symbol("n")
X = Value("x", contiguous("float32", (N,)))


def test_other_sizes_have_programs_of_their_own() -> None:
    made: list[dict[str, int]] = []

    def make(sizes: dict[str, int]) -> Any:
        made.append(sizes)
        return lambda x: (x + sizes["n"],)

    call = SizeSpecialisations(lambda x: (x,), [X], [Relation(N, ">=", 3), Relation(N % 2, "==", 0)], make)
    for size in (4, 2, 6, 5, 2):
        (found,) = call(torch.zeros(size))
        assert torch.equal(found, torch.full((size,), 0.0 if size in (4, 6) else float(size)))
    assert made == [{"n": 2}, {"n": 5}]


def test_a_capture_with_sizes_has_no_symbols() -> None:
    node = Node("torch.Tensor.view", (Ref("x"), N // 2, 2), {}, (Value("y", contiguous("float32", (N // 2, 2))),))
    capture = Capture(
        code=Code("f", "f.py", 1),
        inputs=(Input(X, Local("x")),),
        graph=Graph((X,), (node,), (Ref("y"),)),
        guards=(Relation(N % 2, "==", 0),),
        symbols=(Symbol("n", None, 4, 2),),
    )
    fixed = with_sizes(capture, {"n": 6})
    assert fixed.guards == fixed.symbols == ()
    assert fixed.graph.nodes[0].args == (Ref("x"), 3, 2)
    assert fixed.inputs[0].value.type == contiguous("float32", (6,))
