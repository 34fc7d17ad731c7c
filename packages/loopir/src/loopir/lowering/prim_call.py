"""Prims that stay calls of ATen: one extern each."""

from __future__ import annotations

from loopir.lowering.call import Call
from loopir.lowering.context import Lowering
from loopir.prim_calls import PRIM_CALLS
from stagewire.graph import DeviceArg, Node, references
from stagewire.loop import Extern
from stagewire.types import TensorType


def lower_prim_call(lowering: Lowering, call: Call) -> None:
    """The call that `PRIM_CALLS` names; made from nothing, the result says on which device."""
    _, target, keywords = PRIM_CALLS[call.name]
    args = tuple([arg for name, arg in call.arguments.items() if name not in keywords])
    named = {name: call.arguments[name] for name in keywords}
    results: list[str] = []
    for value in call.node.results:
        assert isinstance(value.type, TensorType), "every result of a prim is a tensor"
        lowering.declare(value.name, value.type, "extern")
        results.append(value.name)
    if not any(True for arg in call.arguments.values() for _ in references(arg)) and _device(call.node) != "cpu":
        named["device"] = DeviceArg(_device(call.node))
    lowering.extern(Extern(target, args, named, tuple(results), call.node.line, call.node.effect))


def _device(node: Node) -> str:
    type = node.results[0].type
    return type.device if isinstance(type, TensorType) else "cpu"


TABLE = {name: (row.parameters, lower_prim_call) for name, row in PRIM_CALLS.items()}
