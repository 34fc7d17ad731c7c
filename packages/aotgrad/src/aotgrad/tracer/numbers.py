"""Floats that are given, or computed of such ones and of sizes, in the graph: 0-dim doubles, a node a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from absint.meta import CPU
from absint.symbolic import FloatNode, Term, make_size
from stagewire.graph import Ref

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["record_number"]

aten = torch.ops.aten
_STEPS: dict[str, OpOverload] = {
    "add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "truediv": aten.div.Tensor,
    "pow": aten.pow.Tensor_Tensor,
    **{name: getattr(aten, name).default for name in ("neg", "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1")},
}  # fmt: skip


def record_number(emit: Callable[..., Ref], node: FloatNode, device: torch.device) -> Ref:
    """The value of a float; `emit(op, args, kwargs)` records an op."""

    def record(term: Term) -> Ref:
        if term.operator == "input":
            given = Ref(term.operands[0])
            return given if device == CPU else emit(aten._to_copy.default, (given,), {"device": device})
        if term.operator in _STEPS:
            return emit(_STEPS[term.operator], tuple(map(record, term.operands)), {})
        (value,) = term.operands
        number = make_size(node.env, value) if term.operator == "size" else value
        return emit(aten.full.default, ([], number), {"dtype": torch.float64, "device": device})

    return record(node.term)
