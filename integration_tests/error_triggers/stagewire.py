"""Documents: their bytes, their printed form, their constraints; how stages are found."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import stagewire
from stagewire.capabilities import Capabilities, Capability
from stagewire.errors import PartlyDone
from stagewire.expr import parse_expr
from stagewire.parser import parse_document
from stagewire.passes import run_passes
from stagewire.stage import discover, expect
from stagewire.verify import verify
from stagewire.vocabulary import find


def SW001() -> None:
    stagewire.decode(b'{"document": "prim", "version": 1, "producer": "me", "body": {}}')


def SW002() -> None:
    stagewire.decode(b'{"document": "graph", "version": 1, "producer": "me", "body": {}}')


def SW003() -> None:
    document = parse_document("""
        prim 3 {
          binding { inputs {} outputs { Fresh(result=0) } }
          forward {
            %y: f32[3] = prims.exp(%x)
            return %y
          }
        }""")
    verify(document)


def SW004() -> None:
    parse_expr("s0 / 2")


def SW005() -> None:
    parse_document("prim 3 { binding = 3 }")


def SW006(folder: Path, patch: pytest.MonkeyPatch) -> None:
    for owner in ("one", "another"):
        information = folder / owner / f"{owner}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Name: {owner}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[stagefold.stages]\nmine = {owner}:Stage\n")
        patch.syspath_prepend(folder / owner)
    discover()


def SW010() -> None:
    find("prims.frobnicate")


def SW011() -> None:
    prim = parse_document("prim 3 { binding { inputs {} outputs {} } forward { return } }")
    expect(prim, "prim", "partition")


def SW012() -> None:
    def prints_it(text: str) -> None:
        print(text)

    run_passes("loopir", [prints_it], "a value", lambda text: None)


def SW007() -> None:
    raise PartlyDone(MemoryError("no room for 8 GiB"))


def SW008() -> None:
    rows = {"cross_ratio": Capability("math.cross_ratio", "projective geometry", "no projective geometry")}
    Capabilities(math, "example", **rows).require("cross_ratio")
