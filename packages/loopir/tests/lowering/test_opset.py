"""loopir knows every prim of the published opset (a copy of primops' opset.json), under the same parameter names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopir.lowering import LOWERINGS
from loopir.ops import OPS
from loopir.testing.prim_meaning import PRIMS

OPSET = json.loads((Path(__file__).parent.parent / "data" / "opset.json").read_text())
CALLS = {prim["name"]: prim["call"] for prim in OPSET["prims"] if "call" in prim}
ELEMENTWISE = {prim["name"] for prim in OPSET["prims"] if prim["name"] in OPS} - {"bitcast"}


@pytest.mark.parametrize("prim", OPSET["prims"], ids=lambda prim: prim["name"])
def test_every_prim_has_a_lowering(prim: dict) -> None:  # type: ignore[type-arg]
    parameters, _ = LOWERINGS[prim["name"]]
    if prim["name"] in ELEMENTWISE:
        assert len(parameters) == len(prim["parameters"]) == OPS[prim["name"]].arity
    else:
        assert list(parameters) == [parameter["name"] for parameter in prim["parameters"]]


def test_every_prim_has_a_meaning() -> None:
    names = {prim["name"] for prim in OPSET["prims"]}
    assert names - set(PRIMS) - ELEMENTWISE - set(CALLS) == set()
    assert set(LOWERINGS) == names
