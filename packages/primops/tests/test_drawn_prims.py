"""What 600 drawn `Prim` documents hold: nearly every prim."""

from __future__ import annotations

from primops.prims import OPS
from stagewire.testing.strategies import examples, prims
from stagewire.verify import verify


def test_nearly_every_prim_is_drawn() -> None:
    called = set()
    for document in examples(prims(), 600):
        verify(document)
        graphs = [graph for graph in (document.joint, document.forward, document.backward) if graph is not None]
        called |= {node.target.removeprefix("prims.") for graph in graphs for node in graph.nodes}
    assert len(OPS.keys() & called) >= 0.95 * len(OPS), f"never drawn: {sorted(OPS.keys() - called)}"
