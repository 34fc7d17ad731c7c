"""Decompositions of ATen into prims, and graphs of prims."""

from __future__ import annotations

import torch

from primops.interpret import interpret
from primops.stage import lower_graph
from stagewire.parser import parse_graph


def PO001() -> None:
    graph = parse_graph("""
        input %x: f32[2, 3]
        %y: f32[2, 3] = aten.exp.default(%x)
        return %y
    """)
    lower_graph(graph, {"aten.exp.default": lambda p, x: p.sum(x, (0,))})


def PO004() -> None:
    graph = parse_graph("""
        input %x: f32[2]
        %y: f32[2] = prims.exp(%x)
        return %y
    """)
    interpret(graph, [torch.zeros(3)])
