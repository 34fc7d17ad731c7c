"""Which values of a program depend on weights alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stagewire.grad import Grad
from stagewire.graph import Node, node_references, references
from stagewire.types import TensorType

VIEWS = frozenset(
    """
    aten.alias.default aten.t.default aten.transpose.int aten.permute.default aten.view.default aten.reshape.default
    aten._unsafe_view.default aten.expand.default aten.unsqueeze.default aten.squeeze.dim aten.squeeze.dims
    aten.squeeze.default aten.select.int aten.slice.Tensor aten.detach.default aten.unbind.int aten.split.Tensor
    aten.split_with_sizes.default
    """.split()  # noqa: SIM905
)
"""Calls that cost nothing: a window on a weight is taken where it is used."""

DRAWS = ("rand", "bernoulli", "dropout", "normal", "multinomial", "empty", "poisson", "exponential", "uniform")
"""Parts of names of calls whose results are new each time."""

FROZEN_ROLES = frozenset(("parameter", "buffer"))


def frozen_inputs(grad: Grad) -> dict[str, int]:
    """Names of the graph's inputs that are weights (parameters and buffers that the program does not write), and
    their places."""
    names = [value.name for value in grad.forward.inputs]
    return {
        names[place]: place
        for place, given in enumerate(grad.binding.inputs)
        if given.role in FROZEN_ROLES and not given.mutated and not given.fixed_offset
    }


def constant_nodes(grad: Grad) -> list[Node]:
    """The nodes that depend on weights (and on constants of the program) alone, in order."""
    weights = set(frozen_inputs(grad))
    first = len(grad.binding.inputs)
    fixed = {value.name for value in grad.forward.inputs[first:]}
    outputs = {name for arg in grad.forward.outputs for name in references(arg)}
    found = []
    for node in grad.forward.nodes:
        names = set(node_references(node))
        results = [value.name for value in node.results if value.name]
        if names <= weights | fixed and is_pure(node) and not outputs.intersection(results):
            (weights if names & weights else fixed).update(results)
            found.append(node)
    kept = needed(found, (name for node in found for name in _results(node) if name in weights))
    return kept


def needed(nodes: list[Node], names: Iterable[str]) -> list[Node]:
    """Those of the nodes that the named values need, in order."""
    wanted = set(names)
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(_results(node)):
            wanted.update(node_references(node))
            kept.append(node)
    return kept[::-1]


def is_pure(node: Node) -> bool:
    """Whether the call gives the same tensors each time."""
    if not node.target.startswith("aten.") or any(not isinstance(v.type, TensorType) for v in node.results if v.name):
        return False
    name = node.target.removeprefix("aten.").partition(".")[0]
    return not name.endswith("_") and not any(part in name for part in DRAWS)


def users(nodes: Iterable[Node]) -> Mapping[str, list[Node]]:
    """The nodes that use each value."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        for name in dict.fromkeys(node_references(node)):
            found.setdefault(name, []).append(node)
    return found


def _results(node: Node) -> tuple[str, ...]:
    return tuple(value.name for value in node.results if value.name)
