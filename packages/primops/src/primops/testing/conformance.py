"""Does a lowering keep the meaning: for this stage, and for any other that fills its slot (Grad in, Prim out).

check_lowering(Primops(), grad)      # raises AssertionError, or a coded error of the verifier
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from primops.errors import InterpretFault
from primops.interpret import interpret
from primops.meanings import DTYPES
from stagewire.grad import Grad
from stagewire.graph import Graph
from stagewire.prim import Prim
from stagewire.types import TensorType
from stagewire.verify import verify

RELATIVE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Allowed differences of floats, relative and absolute; everything else must be equal."""


class Lowering(Protocol):
    def run(self, document: Grad) -> Prim: ...


def check_lowering(stage: Lowering, grad: Grad, inputs: Sequence[torch.Tensor] | None = None) -> Prim:
    """Lower `grad`, verify the result and compare what both graphs mean; the inputs are random unless given."""
    prim = stage.run(grad)
    verify(prim)
    assert prim.joint is not None, "the stage that cuts is another"
    assert prim.binding == grad.binding, "the binding is not the stage's to change"
    check_graphs(grad.joint, prim.joint, random_inputs(grad.joint) if inputs is None else inputs)
    return prim


def check_graphs(before: Graph, after: Graph, inputs: Sequence[torch.Tensor]) -> None:
    """Compare two graphs on `inputs`: outputs and their strides, random stream."""
    (expected, stream), (made, other) = (_run(graph, inputs) for graph in (before, after))
    assert torch.equal(stream, other), "the random stream stands elsewhere"
    for number, (a, b) in enumerate(zip(made, expected, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert a == b, f"output {number} is {a!r}, not {b!r}"
            continue
        allowed = RELATIVE.get(b.dtype, 0.0)
        torch.testing.assert_close(
            a, b, rtol=allowed, atol=allowed, equal_nan=True, msg=lambda text, number=number: f"output {number}: {text}"
        )
        assert a.stride() == b.stride() or b.numel() == 0, f"output {number}: strides {a.stride()}, not {b.stride()}"


def _run(graph: Graph, inputs: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], torch.Tensor]:
    torch.manual_seed(0)
    outputs = interpret(graph, [x.clone() for x in inputs])
    return outputs, torch.rand(2)


def random_inputs(graph: Graph, seed: int = 0) -> list[torch.Tensor]:
    """Tensors of the types of a graph's inputs: floats in 0.1..1.1, integers 0 or 1, so that they can be indices."""
    generator = torch.Generator().manual_seed(seed)
    return [_random(value.type, generator) for value in graph.inputs]


def _random(type: Any, generator: torch.Generator) -> torch.Tensor:
    if not isinstance(type, TensorType) or not all(isinstance(n, int) for n in (*type.shape, *type.stride)):
        raise InterpretFault(f"no random input of type {type}", fix="Pass inputs for graphs with symbolic sizes.")
    dtype = DTYPES[type.dtype]
    if dtype.is_floating_point:
        tensor = torch.rand(type.shape, generator=generator).to(dtype) + 0.1
    else:
        tensor = torch.randint(0, 2, type.shape, generator=generator).to(dtype)
    return torch.empty_strided(type.shape, type.stride, dtype=dtype).copy_(tensor)
