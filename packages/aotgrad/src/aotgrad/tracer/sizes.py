"""The symbolic sizes of a trace: what the capture knows of its symbols, and what the trace would have to assume."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from absint.symbolic import GivenNumbers, ShapeEnv, dim_of, from_dim, make_size
from absint.symbolic.size import size_of
from aotgrad.errors import BadCapture
from aotgrad.joint import Joint
from stagewire.capture import Capture, Relation, facts_of
from stagewire.expr import Expr
from stagewire.substitution import map_sizes

__all__ = ["SizesOf"]


class SizesOf:
    """From a size expression of the capture to the symbolic size that the trace computes with.

    env: the ranges of the symbols, and the conditions that the capture's guards check. What the trace asks beyond them
    is answered as the values of the capture say, and becomes a condition of its own (`assumptions`).
    """

    def __init__(self, capture: Capture) -> None:
        self.env = ShapeEnv()
        self.env.given = GivenNumbers(is_checked=True)
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
