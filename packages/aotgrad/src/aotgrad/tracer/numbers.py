"""Floats that are computed of symbolic sizes, in the graph: doubles in tensors without dimensions, a node a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import OpOverload

from absint.symbolic import FloatNode, Term, make_size
from stagewire.graph import Ref

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
        if term.operator in _STEPS:
            return emit(_STEPS[term.operator], tuple(map(record, term.operands)), {})
        (value,) = term.operands
        number = make_size(node.env, value) if term.operator == "size" else value
        return emit(aten.full.default, ([], number), {"dtype": torch.float64, "device": device})

    return record(node.term)
