"""primops: the prims as data, decompositions of ATen into them, and what graphs of prims mean."""

from __future__ import annotations

from primops.interpret import Interpreter, interpret
from primops.prims import OPSET, VOCABULARY
from primops.stage import Options, Primops, lower_graph

__all__ = ["OPSET", "VOCABULARY", "Interpreter", "Options", "Primops", "interpret", "lower_graph"]
