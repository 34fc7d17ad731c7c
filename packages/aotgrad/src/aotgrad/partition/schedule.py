"""The order of a backward: where among its nodes stands what is computed again.

run ::= node that is fused* node that is not
backward ::= (products computed again for the run, run with cheap values computed again in front of their use)*
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from aotgrad.errors import PartitionError
from aotgrad.joint import Joint
from aotgrad.ops import is_random, memory_roots
from aotgrad.partition.needs import Needs, Sizes
from aotgrad.partition.policy import Policy
from aotgrad.partition.recompute_bans import is_fused
from stagewire.graph import Node, Ref, definitions, last_mentions
from stagewire.graph_passes import operands


def backward_nodes(joint: Joint, needs: Needs, saved: frozenset[str], recomputed: list[Node]) -> tuple[Node, ...]:
    """The backward's nodes; what is computed again stands right before its first use, so that it lives briefly.

    A product that is computed again stands before the run of fused nodes that uses it: between them it would keep
    them from being one kernel, and what they pass on would be written to memory. `recomputed` takes the forward nodes.
    """
    return _Schedule(joint, needs, saved, recomputed).run()


class _Schedule:
    """The nodes so far, and the names that are at hand."""

    def __init__(self, joint: Joint, needs: Needs, saved: frozenset[str], recomputed: list[Node]) -> None:
        self.joint, self.needs, self.recomputed = joint, needs, recomputed
        self.ready = set(saved) | {value.name for value in joint.tangent_values}
        self.nodes: list[Node] = []

    def run(self) -> tuple[Node, ...]:
        for part in _runs(self.needs.backward):
            own = {value.name for node in part for value in node.results}
            for node in part:
                self.recompute(self.products([name for name in operands(node) if name not in own]))
            for node in part:
                self.recompute(operands(node))
                self.nodes.append(node)
                self.ready.update(value.name for value in node.results)
        self.recompute(tuple(ref.name for ref in self.joint.gradient_refs if isinstance(ref, Ref)))
        return tuple(self.nodes)

    def products(self, names: list[str]) -> tuple[str, ...]:
        """The results of forward nodes that are not fused and from which fused ones lead to `names`."""
        found: list[str] = []
        seen: set[str] = set()
        pending = [name for name in reversed(names) if name not in self.ready]
        while pending:
            name = pending.pop()
            node = self.needs.producers.get(name)
            if name in seen or name in self.ready or node is None:
                continue
            seen.add(name)
            if is_fused(node, _POLICY):
                pending.extend(reversed(operands(node)))
            else:
                found.append(name)
        return tuple(found)

    def recompute(self, names: tuple[str, ...]) -> None:
        """Have `names` at hand."""
        ready, needs = self.ready, self.needs
        stack = [name for name in reversed(names) if name not in ready]
        while stack:
            name = stack[-1]
            if name in ready:
                stack.pop()
                continue
            node = needs.producers.get(name)
            if node is None:
                raise PartitionError(f"the backward uses the input {name}, which is not among the saved values")
            if is_random(node):
                raise PartitionError(f"the backward uses {name}, made by {node.target}, which is not saved")
            missing = [operand for operand in operands(node) if operand not in ready]
            if missing:
                stack.extend(missing)
                continue
            # Of several results some may be saved: those are not made a second time under their names.
            results = tuple(replace(v, name=f"{v.name}_again") if v.name in ready else v for v in node.results)
            self.nodes.append(replace(node, results=results, phase="backward"))
            self.recomputed.append(node)
            ready.update(value.name for value in node.results)
            stack.pop()


_POLICY = Policy()


def _runs(nodes: tuple[Node, ...]) -> Iterator[list[Node]]:
    part: list[Node] = []
    for node in nodes:
        part.append(node)
        if not is_fused(node, _POLICY):
            yield part
            part = []
    yield part


def peak_backward_bytes(joint: Joint, needs: Needs, sizes: Sizes, saved: tuple[str, ...]) -> int:
    """Bytes of saved, recomputed and backward values that are alive together at most, node by node.

    An estimate: inputs count nothing, nor do views, which keep what they look at; what fusion leaves out is counted.
    """
    nodes = backward_nodes(joint, needs, frozenset(saved), [])
    given = {value.name for value in joint.primal_values} - needs.mutated
    bytes_of = {name: sizes.bytes(value.type) for name, value in definitions(joint.graph).items()}
    roots = memory_roots(nodes)
    ends = [roots.get(ref.name, ref.name) for ref in joint.gradient_refs if isinstance(ref, Ref)]
    names = [(*operands(node), *(value.name for value in node.results)) for node in nodes]
    unused = last_mentions([[roots.get(name, name) for name in each] for each in names], ends)
    live = sum(bytes_of[name] for name in {*saved, *(v.name for v in joint.tangent_values)} - given)
    peak = live
    for node, dead in zip(nodes, unused, strict=True):
        live += sum(bytes_of.get(value.name, 0) for value in node.results if roots[value.name] == value.name)
        peak = max(peak, live)
        live -= sum(bytes_of.get(name, 0) for name in dead if name not in given)
    return peak
