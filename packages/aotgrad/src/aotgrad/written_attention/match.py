"""Finds attention in a captured program: from the product with the values up to the product of queries and keys."""

from __future__ import annotations

from typing import NamedTuple

from aotgrad.written_attention import names
from aotgrad.written_attention.products import Roles, product_of, roles_of_scores, roles_of_values
from aotgrad.written_attention.program import Program
from aotgrad.written_attention.steps import FLOATS, Step, steps_of
from stagewire.graph import Node, Ref

__all__ = ["Match", "Refused", "find"]


class Refused(Exception):
    """Why a softmax between two products stays as it is written; `str()` is one clause for people."""


class Match(NamedTuple):
    """One attention: the calls it is made of (their numbers, the last one makes the output), and what they do.

    scores, values: the two products, of query and key, and of weights and values. steps: what is done to the scores in
    between, in order. dropout: the probability with which weights are dropped.
    """

    calls: frozenset[int]
    last: int
    scores: Roles
    values: Roles
    steps: tuple[Step, ...]
    dropout: float


def find(program: Program, last: int) -> Match | None:
    """The attention whose output call number `last` makes; None if there is none. Raises `Refused`."""
    node = program.nodes[last]
    product = product_of(node, program.types)
    if product is None or product.added is not None or product.scale != 1:
        return None
    for operand in dict.fromkeys((product.left, product.right)):
        walk = _Walk(program)
        reached = walk.to_softmax(operand, last)
        if reached is None:
            continue
        values = roles_of_values(product, operand)
        if values is None or product.left == product.right:
            raise Refused("the weights are not summed over the last dimension with the values")
        source, index = reached
        scores = walk.to_product(program.base(source), index)
        return Match(frozenset((*walk.calls, last)), last, scores, values, tuple(walk.steps[::-1]), walk.dropout)
    return None


class _Walk:
    """The way up from the weights. steps: in reverse order. calls: the calls passed."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calls: list[int] = []
        self.steps: list[Step] = []
        self.dropout = 0.0

    def to_softmax(self, name: str, reader: int) -> tuple[str, int] | None:
        """From the weights as call `reader` takes them to what the softmax takes, and the softmax; None if the weights
        are of no softmax."""
        program, passed = self.program, list[tuple[str, int]]()
        while True:
            name = program.base(name)
            index = program.definers.get(name)
            if index is None:
                return None
            node = program.nodes[index]
            passed.append((name, reader))
            self.calls.append(index)
            if node.target in names.SOFTMAX:
                break
            source = self._weights_before(node, name)
            if source is None:
                return None
            name, reader = source, index
        for weights, used_by in passed:
            if program.readers.get(weights) != [used_by] or weights in program.returned:
                raise Refused("the weights are used elsewhere too")
        return self._softmax(node, name), index

    def _weights_before(self, node: Node, name: str) -> str | None:
        """What a dropout, cast or view between softmax and product takes."""
        if node.target in names.DROPOUT and not names.writes_first(node):
            chance = names.drops(node)
            if chance is None or self.dropout:
                raise Refused("the weights are dropped twice, or with a probability that is not known")
            self.dropout = chance
            first = node.args[0] if node.args else node.kwargs.get("input")
            return first.name if isinstance(first, Ref) else None
        if node.target not in names.CAST | names.SAME | names.SHAPE:
            return None
        found = steps_of(self.program, node, name)
        if not found:
            return None
        self.steps += found[0][1]
        return found[0][0]

    def _softmax(self, node: Node, name: str) -> str:
        """What the softmax takes, if it normalises the last dimension."""
        operands = [*node.args, *(node.kwargs[key] for key in ("dim",) if key in node.kwargs)]
        if len(operands) < 2 or not isinstance(operands[0], Ref):
            raise Refused("the softmax has no dimension")
        rank = len(self.program.types[name].shape)
        if operands[1] not in (-1, rank - 1) or rank < 2:
            raise Refused("the softmax is not over the last dimension")
        if self.program.types[name].dtype not in FLOATS:
            raise Refused(f"no fused kernel is for {self.program.types[name].dtype}")
        return operands[0].name

    def to_product(self, name: str, reader: int) -> Roles:
        """From the scores as the softmax takes them to the product that they come from."""
        found = self._scores(name, reader)
        if isinstance(found, Refused):
            raise found
        return found

    def _scores(self, name: str, reader: int) -> Roles | Refused:
        """The product that the value is made of, with the steps since noted; or why there is none."""
        program = self.program
        name = program.base(name)
        index = program.definers.get(name)
        if index is None:
            return Refused("the scores are no product")
        kept = len(self.calls), len(self.steps)
        readers = self._readers(name)
        if name in program.returned or not readers or readers[-1] != reader:
            del self.calls[kept[0] :]
            return Refused("the scores are used elsewhere too")
        for writer in reversed(readers[:-1]):
            if not self._writes(writer, name):
                del self.calls[kept[0] :], self.steps[kept[1] :]
                return Refused("the scores are used elsewhere too")
        found = self._made(index, name)
        if isinstance(found, Refused):
            del self.calls[kept[0] :], self.steps[kept[1] :]
        return found

    def _readers(self, name: str) -> list[int]:
        """The calls that use the scores. Those that only ask what tensor they are, for another call of the match, are
        noted instead."""
        readers = []
        known = self.program.readers.get(name, [])
        writers = {index for index in known if self._is_written(index, name)}
        for index in known:
            node = self.program.nodes[index]
            asks = node.target in names.LIKE
            asks |= node.target in names.CAST | names.EXPAND and self.program.base(_first(node)) != name
            if not asks or not self._serves(index, node, writers):
                readers.append(index)
            elif index not in self.calls:
                self.calls.append(index)
        return readers

    def _is_written(self, index: int, name: str) -> bool:
        return any(self.program.base(written) == name for written in names.may_write(self.program.nodes[index]))

    def _serves(self, index: int, node: Node, writers: set[int]) -> bool:
        """Whether nothing but the match, and what writes into the scores, uses the result."""
        mine = {*self.calls, *writers, index}
        used_by = [reader for value in node.results for reader in self.program.readers.get(value.name, [])]
        returned = any(value.name in self.program.returned for value in node.results)
        return index in self.calls or (not returned and mine.issuperset(used_by))

    def _writes(self, index: int, name: str) -> bool:
        """Note a call that changes the scores in place."""
        node = self.program.nodes[index]
        if not (names.writes_first(node) or node.target in names.SET_ITEM):
            return False
        found = [steps for source, steps in steps_of(self.program, node, name) if self.program.base(source) == name]
        if not found:
            return False
        self.calls.append(index)
        self.steps += found[0][::-1]
        return True

    def _made(self, index: int, name: str) -> Roles | Refused:
        """The product that call `index` is, or that one of its operands is made of."""
        program, node = self.program, self.program.nodes[index]
        self.calls.append(index)
        product = product_of(node, program.types)
        if product is not None:
            roles = roles_of_scores(product)
            if roles is None:
                return Refused("the scores are a product of another kind")
            if product.added is not None:
                self.steps.append(("add", Ref(product.added), product.beta))
            if product.scale != 1:
                self.steps.append(("mul", product.scale))
            return roles
        why: Refused | None = None
        for source, steps in steps_of(program, node, name):
            kept = len(self.calls), len(self.steps)
            self.steps += steps[::-1]
            found = self._scores(source, index)
            if isinstance(found, Roles):
                return found
            why = why or found
            del self.calls[kept[0] :], self.steps[kept[1] :]
        return why or Refused(f"{node.target} makes the scores")


def _first(node: Node) -> str:
    first = node.args[0] if node.args else None
    return first.name if isinstance(first, Ref) else ""
