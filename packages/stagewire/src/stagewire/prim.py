"""`Prim`: the graphs of `Grad` in prims ("prims.add") and named externs of ATen ("aten.mm.default")."""

from __future__ import annotations

import msgspec

from stagewire.grad import Binding
from stagewire.graph import Graph


class Prim(msgspec.Struct, frozen=True, kw_only=True, tag="prim", tag_field="document"):
    """Same binding and calling convention as the `Grad` it came from; `opset` is the version of primops' opset."""

    binding: Binding
    forward: Graph
    backward: Graph | None = None
    opset: int = 1
