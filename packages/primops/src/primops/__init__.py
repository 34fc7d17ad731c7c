"""primops: the prim set as data, decompositions of ATen into it, and what graphs of prims mean."""

from __future__ import annotations

from primops.interpret import Interpreter, interpret
from primops.prims import OPSET, RECORDS
from primops.stage import Options, Primops, lower_graph
from primops.verify import verify, verify_graph

__all__ = [
    "OPSET",
    "RECORDS",
    "Interpreter",
    "Options",
    "Primops",
    "interpret",
    "lower_graph",
    "verify",
    "verify_graph",
]
