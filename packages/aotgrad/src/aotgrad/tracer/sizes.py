"""The symbolic sizes of a trace: what the capture knows of its symbols, and what the trace would have to assume."""

from __future__ import annotations

from typing import Any

from absint.errors import UndecidedSize
from absint.symbolic import ShapeEnv, from_dim, make_size
from aotgrad.errors import BadCapture
from stagewire.capture import Capture, Relation
from stagewire.expr import Expr

__all__ = ["SizesOf", "facts_of"]


class SizesOf:
    """From a size expression of the capture to the symbolic size that the trace computes with.

    env: the ranges of the symbols, and the conditions that the capture's guards check.
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
        return known

    def refuse_assumptions(self) -> None:
        """Raise `UndecidedSize` if the trace holds for some of the sizes only that the capture takes."""
        if self.env.relations:
            text = ", ".join(f"{r.left} {r.operator} {r.right}" for r in self.env.relations)
            line = self.env.relations[0].line
            raise UndecidedSize(f"the gradient holds only where {text}", where=None if line is None else str(line))


def facts_of(capture: Capture) -> tuple[Relation, ...]:
    """What the guards of the capture check of its symbols."""
    return tuple(
        Relation(guard.left, guard.operator, guard.right) for guard in capture.guards if isinstance(guard, Relation)
    )
