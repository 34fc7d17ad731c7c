"""The symbolic sizes and floats of a trace: what the capture knows of them, and what the trace would have to assume."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

from absint.meta import CPU
from absint.symbolic import ShapeEnv, SizeFloat, Term, dim_of, from_dim, make_size
from absint.symbolic.floats import FUNCTIONS
from absint.symbolic.size import size_of
from aotgrad.errors import BadCapture
from aotgrad.joint import Joint
from stagewire.capture import Capture, Relation, facts_of
from stagewire.expr import Expr
from stagewire.graph import Ref
from stagewire.substitution import map_sizes


class SizesOf:
    """From a size expression of the capture to the symbolic size that the trace computes with.

    env: the ranges of the symbols, and the conditions that the capture's guards check. What the trace asks beyond them
    is answered as the values of the capture say, and becomes a condition of its own (`assumptions`).
    """

    def __init__(self, capture: Capture) -> None:
        self.env = ShapeEnv()
        self._known: dict[str, Any] = {}
        for symbol in capture.symbols:
            if symbol.hint is None:
                raise BadCapture(f"the symbol {symbol.name} has no value at capture")
            lower = 0 if symbol.lower is None else symbol.lower
            self.env.create(symbol.name, symbol.hint, lower=lower, upper=symbol.upper)
        for relation in facts_of(capture):
            self.env.assume(relation)

    def __call__(self, size: Expr) -> Any:
        known = self._known.get(size.text)
        if known is None:
            known = self._known[size.text] = make_size(self.env, from_dim(size))
        return known if type(known) is int else size_of(known.node)

    def rewrite(self, joint: Joint) -> Joint:
        """With sizes that are equal written alike: what was recorded before that was known is written anew."""
        if not any(relation.operator == "==" for relation in self.env.relations):
            return joint
        graph, binding = map_sizes((joint.graph, joint.binding), lambda size: dim_of(self(size)))
        facts = {"facts": joint.binding.facts, "assumptions": joint.binding.assumptions}
        return replace(joint, graph=graph, binding=replace(binding, **facts))

    @property
    def assumptions(self) -> tuple[Relation, ...]:
        """What the capture does not check, and the trace relies on."""
        return tuple(self.env.relations)


if TYPE_CHECKING:
    from torch._ops import OpOverload


aten = torch.ops.aten
_STEPS: dict[str, OpOverload] = {
    "add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "truediv": aten.div.Tensor,
    "pow": aten.pow.Tensor_Tensor, "floordiv": aten.floor_divide.default, "mod": aten.remainder.Tensor,
    **{name: getattr(aten, name).default for name in ("neg", "abs", *FUNCTIONS)},
}  # fmt: skip


def record_number(emit: Callable[..., Ref], number: SizeFloat, device: torch.device) -> Ref:
    """The value of a float; `emit(op, args, kwargs)` records an op."""

    def record(term: Term) -> Ref:
        if term.operator == "symbol":
            given = Ref(term.operands[0])
            return given if device == CPU else emit(aten._to_copy.default, (given,), {"device": device})
        if term.operator in _STEPS:
            return emit(_STEPS[term.operator], tuple(map(record, term.operands)), {})
        (value,) = term.operands
        filling = make_size(number.env, value) if term.operator == "size" else value
        return emit(aten.full.default, ([], filling), {"dtype": torch.float64, "device": device})

    return record(number.term)
