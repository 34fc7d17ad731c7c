"""Pass: dead code goes. (Equal calls become one, and views that change nothing go, where primops lowers the graph.)"""

from __future__ import annotations

import msgspec

from aotgrad.joint import Joint
from aotgrad.passes.data_errors import kept_for_their_errors
from stagewire.graph_passes import live_nodes, with_nodes


class RemoveDeadCode(msgspec.Struct, frozen=True):
    """After it, every node is used by a later node or an output, or has an effect.

    A node of the forward that may raise because of its data (`absint.data_errors`) has the effect "acts" where no
    result of the forward needs it: it stays for its error.
    """

    def __call__(self, joint: Joint) -> Joint:
        graph = kept_for_their_errors(joint.graph, joint.results)
        kept = live_nodes(graph)
        if len(kept) == len(graph.nodes) and graph is joint.graph:
            return joint
        return joint.with_graph(with_nodes(graph, kept))
