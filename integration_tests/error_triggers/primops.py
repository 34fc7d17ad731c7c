"""Decompositions of ATen into prims, and graphs of prims."""

from __future__ import annotations

import torch

from primops.interpret import interpret
from primops.stage import lower_graph
from primops.verify import verify, verify_graph
from stagewire.parser import parse_document, parse_graph


def PO001() -> None:
    graph = parse_graph("""
        input %x: f32[2, 3]
        %y: f32[2, 3] = aten.exp.default(%x)
        return %y
    """)
    lower_graph(graph, {"aten.exp.default": lambda p, x: p.sum(x, (0,))})


def PO002() -> None:
    graph = parse_graph("""
        input %x: f32[2]
        %y: f32[2] = prims.frobnicate(%x)
        return %y
    """)
    verify_graph(graph)


def PO003() -> None:
    graph = parse_graph("""
        input %x: f32[2]
        %y: f32[3] = prims.exp(%x)
        return %y
    """)
    verify_graph(graph)


def PO004() -> None:
    graph = parse_graph("""
        input %x: f32[2]
        %y: f32[2] = prims.exp(%x)
        return %y
    """)
    interpret(graph, [torch.zeros(3)])


def PO005() -> None:
    document = parse_document("""
        prim 2 {
          binding { inputs {} outputs {} }
          forward { return }
          opset = 1000
        }
    """)
    verify(document)
