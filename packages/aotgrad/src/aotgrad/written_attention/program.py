"""What a match asks about a captured program: where a value comes from, who reads it, who may write into it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aotgrad.written_attention.names import is_pure, may_write, sharing, writes_first
from stagewire.capture import Capture
from stagewire.graph import Node, Ref, node_references, references
from stagewire.types import TensorType

__all__ = ["Program"]


class Program:
    """A capture by its values. A value that calls in place return is known by the name of the one they write into.

    types: of each tensor, by name. definers: the call that made it. readers: the calls that use it, writers in place
    among them, in order; calls whose results nobody uses and that do nothing else are left out. constants: values that
    literals decide, as far as somebody has asked (`constants.constant`).
    """

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.nodes = capture.graph.nodes
        self.types: dict[str, TensorType] = {}
        self.definers: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        self.constants: dict[str, torch.Tensor | None] = {}
        self._bases: dict[str, str] = {}
        for value in capture.graph.inputs:
            if isinstance(value.type, TensorType):
                self.types[value.name] = value.type
        for index, node in enumerate(self.nodes):
            self._define(index, node)
        self.returned = frozenset(self.base(name) for arg in capture.graph.outputs for name in references(arg))
        for index in self._live():
            for name in dict.fromkeys(self.base(name) for name in node_references(self.nodes[index])):
                self.readers.setdefault(name, []).append(index)
        self._families = self._join_families()

    def _define(self, index: int, node: Node) -> None:
        for value in node.results:
            if isinstance(value.type, TensorType):
                self.types[value.name] = value.type
            self.definers[value.name] = index
        if writes_first(node) and node.results:
            first = node.args[0]
            assert isinstance(first, Ref)
            self._bases[node.results[0].name] = self.base(first.name)

    def base(self, name: str) -> str:
        """The value that `name` is the same tensor as."""
        return self._bases.get(name, name)

    def definer(self, name: str) -> Node | None:
        """The call that made a value; None for an input."""
        index = self.definers.get(name)
        return None if index is None else self.nodes[index]

    def _live(self) -> list[int]:
        used = {name for arg in self.capture.graph.outputs for name in references(arg)}
        live = []
        for index in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[index]
            if is_pure(node) and used.isdisjoint(value.name for value in node.results):
                continue
            used.update(node_references(node))
            live.append(index)
        return live[::-1]

    def _join_families(self) -> dict[str, str]:
        """Values that may share memory, by the name of one of them."""
        families: dict[str, str] = {}
        for node in self.nodes:
            names = sharing(node)
            for name in names[1:]:
                first, second = _root(families, names[0]), _root(families, name)
                if first != second:
                    families[second] = first
        return families

    def written(self, start: int, stop: int, *, but: frozenset[int]) -> set[str] | None:
        """The families that calls from `start` to `stop` may write into; None if one of them may change more than its
        operands, such as the grad mode."""
        found: set[str] = set()
        for index in range(start, stop):
            node = self.nodes[index]
            if index in but:
                continue
            names = node_references(node)
            if not node.results and not names:
                return None
            found.update(self.family(name) for name in may_write(node))
        return found

    def family(self, name: str) -> str:
        """The family of a value."""
        return _root(self._families, name)

    def writers_of(self, names: set[str]) -> Iterator[int]:
        """The calls that may write into one of these values or into what may share memory with it."""
        families = {self.family(name) for name in names}
        for index, node in enumerate(self.nodes):
            if not families.isdisjoint(self.family(name) for name in may_write(node)):
                yield index


def _root(families: dict[str, str], name: str) -> str:
    while name in families:
        name = families[name]
    return name
