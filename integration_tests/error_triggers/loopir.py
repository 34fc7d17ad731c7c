"""Loop nests: those who write lowerings and passes meet these."""

from __future__ import annotations

import numpy as np

from loopir.builder import record
from loopir.interpret import interpret
from loopir.lowering import lower_graph
from loopir.passes.dependence import Dependences
from loopir.stage import LoopIR
from loopir.testing.graphs import document
from stagewire.types import contiguous

TYPES = {"x": contiguous("float32", (4,)), "y": contiguous("float32", (4,))}


def LI002() -> None:
    prim = document("""
        input %x: f32[2]
        %y: f32[2] = prims.gamma(%x)  # model.py:7 in forward
        return %y
    """)
    LoopIR().run(prim)


def LI003() -> None:
    record("kernel", TYPES, (4,), lambda ops, i: ops.store("y", (i,), ops.load("x", i, i)))


def LI004() -> None:
    prim = document("""
        input %x: f32[2, 2]
        %y: f32[2, 2] = aten.mm.default(%x, %x)
        return %y
    """)
    interpret(LoopIR().run(prim).forward, [np.eye(2, dtype="float32")], externs={})


def LI005() -> None:
    prim = document("""
        input %x: f32[2, 2]
        %a: f32[2, 2] = prims.exp(%x)
        %b: f32[2, 2] = aten.mm.default(%a, %a)
        %c: f32[2, 2] = prims.exp(%b)
        return %c
    """)
    dependences = Dependences(lower_graph(prim.forward))
    dependences.merge(0, 2)  # a and c in one kernel, although c waits for b, and b for a
    dependences.order()
