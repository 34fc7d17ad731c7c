"""What a partitioner asks about a joint graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from aotgrad.joint import Joint
from stagewire.expr import Dim, evaluate
from stagewire.graph import Arg, Node, Ref
from stagewire.graph_passes import operands
from stagewire.types import ITEM_SIZE, TensorType, ValueType, bytes_of, numel


class Needs(msgspec.Struct, frozen=True, eq=False):
    """What the backward of a joint graph needs of its forward.

    producers: for each forward value the node that makes it (inputs have none).
    direct: forward values and inputs that backward nodes or gradients use, in order of first use.
    consumers: for each of them, the positions in `backward` of the nodes that use it.
    backward: the backward nodes, in order.
    mutated: names of inputs that the program writes.
    widened: forward values that are another one in a dtype of larger items: that other one is saved, never they.
    """

    producers: dict[str, Node]
    direct: tuple[str, ...]
    consumers: dict[str, tuple[int, ...]]
    backward: tuple[Node, ...]
    mutated: frozenset[str]
    widened: frozenset[str] = frozenset()

    def sources(self, names: Iterable[str], stops: Iterable[str] = ()) -> Iterator[tuple[str, Node | None]]:
        """These values and all that they are computed of, but for `stops` and what is only behind them: each once,
        with the node that makes it, None for an input."""
        pending, seen = list(names), set(stops)
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                node = self.producers.get(name)
                yield name, node
                pending += operands(node) if node is not None else ()


def needs_of(joint: Joint) -> Needs:
    """Who makes and who uses the values that go from the forward to the backward."""
    producers: dict[str, Node] = {}
    own: set[str] = {value.name for value in joint.tangent_values}
    consumers: dict[str, list[int]] = {}
    backward: list[Node] = []
    types = {value.name: value.type for value in joint.primal_values}
    widened: set[str] = set()
    for node in joint.graph.nodes:
        if node.phase == "forward":
            for value in node.results:
                producers[value.name], types[value.name] = node, value.type
            if node.target in _CONVERSIONS and _is_wider(node.results[0].type, _type_of(node.args[0], types)):
                widened.add(node.results[0].name)
            continue
        for name in operands(node):
            if name not in own:
                consumers.setdefault(name, []).append(len(backward))
        backward.append(node)
        own.update([value.name for value in node.results])
    for arg in joint.gradient_refs:
        if isinstance(arg, Ref) and arg.name not in own:
            consumers.setdefault(arg.name, [])
    mutated = frozenset(given.name for given in joint.binding.inputs if given.mutated)
    used = {name: tuple(positions) for name, positions in consumers.items()}
    return Needs(producers, tuple(used), used, tuple(backward), mutated, frozenset(widened))


_CONVERSIONS = frozenset({"prims.convert_element_type", "aten._to_copy.default"})


def _type_of(arg: Arg, types: Mapping[str, ValueType]) -> ValueType | None:
    """None for what is no tensor: a number that vmap converts."""
    return types.get(arg.name) if isinstance(arg, Ref) else None


def _is_wider(result: ValueType, operand: ValueType | None) -> bool:
    if not isinstance(result, TensorType) or not isinstance(operand, TensorType):
        return False
    return result.device == operand.device and ITEM_SIZE[result.dtype] > ITEM_SIZE[operand.dtype]


def byte_size(kind: ValueType) -> Dim:
    """Bytes of a tensor's elements; 0 for anything else."""
    return bytes_of(kind) if isinstance(kind, TensorType) else 0


class Sizes(msgspec.Struct, frozen=True, eq=False):
    """Sizes as numbers: a symbol counts as what it was at capture."""

    hints: dict[str, int]

    @staticmethod
    def of(joint: Joint) -> Sizes:
        """The hints of a joint graph's symbols; one that has none counts as 1."""
        return Sizes({s.name: 1 if s.hint is None else s.hint for s in joint.binding.symbols})

    def elements(self, kind: ValueType) -> int:
        """How many elements."""
        return evaluate(numel(kind.shape), self.hints) if isinstance(kind, TensorType) else 0

    def bytes(self, kind: ValueType) -> int:
        """How many bytes."""
        return evaluate(byte_size(kind), self.hints)
