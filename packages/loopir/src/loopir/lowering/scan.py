"""Scans: externs of ATen under their own names (the loop grammar has no ordered axes)."""

from __future__ import annotations

from loopir.lowering.call import Call
from loopir.lowering.context import Lowering
from stagewire.graph import DTypeArg, Ref
from stagewire.loop import Extern


def lower_scan(lowering: Lowering, call: Call) -> None:
    """cumsum, cumprod along one dimension, in the result's dtype."""
    buffer, type = call.tensor("x")
    dim = call.axis("dim", len(type.shape))
    name = call.result.name
    lowering.declare(name, call.type, "extern")
    dtype = {"dtype": DTypeArg(call.type.dtype)}
    lowering.extern(Extern(f"aten.{call.name}.default", (Ref(buffer), dim), dtype, (name,), call.node.line))


TABLE = {"cumsum": (("x", "dim"), lower_scan), "cumprod": (("x", "dim"), lower_scan)}
