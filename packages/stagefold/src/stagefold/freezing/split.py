"""A program cut in two: what depends on weights alone, and the rest."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from aotgrad.ops import is_view
from primops.channels_last import CONVOLUTION, channels_last
from stagefold.freezing import fold
from stagewire.grad import BoundInput, Fresh, Grad
from stagewire.graph import Graph, Node, Ref, Value, node_references
from stagewire.graph_passes import live_nodes


class Frozen(NamedTuple):
    """`prepare` gives the folded values from the program's inputs, of which it reads those that are `used`.

    `main` takes the inputs, then those values. Without anything to fold there is no `prepare`.
    """

    prepare: Grad | None
    main: Grad


def freeze(grad: Grad) -> Frozen | None:
    """Both documents; None for a program with a backward, or of symbolic sizes.

    Where that is faster, convolutions become calls with packed weights (`codegen.runtime.cpu_products`), in
    channels-last layout.
    """
    if grad.binding.tangents or grad.binding.symbols:
        return None
    grad = fold.fold_normalisations(grad)
    if fold.suits(grad.joint):
        grad = fold.pack_convolutions(grad)
        kinds = frozenset((fold.PACKED, CONVOLUTION))
        grad = replace(grad, joint=channels_last(grad.joint, kinds))
    grad = fold.pack_products(grad)
    nodes, of_weights = fold.constant_nodes(grad)
    frontier = _frontier(grad, nodes, of_weights)
    if not frontier:
        return Frozen(None, grad)
    return _cut(grad, nodes, frontier)


def _frontier(grad: Grad, nodes: list[Node], of_weights: set[str]) -> list[Value]:
    """The constant values that the rest of the program reads; of a view, what it is a view of."""
    made = {value.name: (node, value) for node in nodes for value in node.results if value.name}
    constant = {id(node) for node in nodes}
    wanted = [n for node in grad.joint.nodes if id(node) not in constant for n in node_references(node)]
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in made or name in found:
            continue
        node, _ = made[name]
        names = node_references(node)
        if is_view(node.target) or not names:  # taken, or made, where it is used
            wanted += names
        elif name in of_weights:
            found.add(name)
        else:
            wanted += names
    return [value for name, (_, value) in made.items() if name in found]


def _cut(grad: Grad, nodes: list[Node], frontier: list[Value]) -> Frozen:
    binding, joint = grad.binding, grad.joint
    names = {value.name for value in frontier}
    before = fold.needed(nodes, names)
    read = {name for node in before for name in node_references(node)}
    inputs = tuple(
        replace(one, mutated=False, used=value.name in read)
        for one, value in zip(binding.inputs, joint.inputs, strict=False)
    )
    prepare = Grad(
        binding=replace(binding, inputs=inputs, outputs=tuple(Fresh(n) for n in range(len(frontier))), mutations=()),
        joint=replace(joint, nodes=tuple(before), outputs=tuple(Ref(value.name) for value in frontier)),
    )
    kept = [node for node in joint.nodes if not names.intersection(value.name for value in node.results)]
    count = len(binding.inputs)
    added = tuple(BoundInput(value.name, value.type, "buffer") for value in frontier)
    main = replace(
        grad,
        binding=replace(binding, inputs=(*binding.inputs, *added)),
        joint=replace(
            joint,
            inputs=(*joint.inputs[:count], *frontier, *joint.inputs[count:]),
            nodes=live_nodes(Graph((), tuple(kept), joint.outputs)),
        ),
    )
    return Frozen(prepare, main)
