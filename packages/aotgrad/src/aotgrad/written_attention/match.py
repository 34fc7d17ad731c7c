"""Finds attention in functional ATen: from the product with the values up to the product of queries and keys.

scores  ::= bmm(q, k^T) | mm | baddbmm
step    ::= scores * x | scores / x | scores + x | scores - x | masked_fill | where | index_put | cast | layout
dropout ::= native_dropout(weights) | weights * (bernoulli(keep) / keep)
weights ::= (dropout | cast | layout)*(softmax(step*(scores)))
output  ::= bmm(weights, v) | bmm(v^T, weights^T) | mm
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from aotgrad.written_attention.program import CAST, LAYOUT, Program
from stagewire.expr import Dim
from stagewire.graph import Arg, List, Node, Ref, Tuple

PRODUCTS = ("aten.bmm.default", "aten.mm.default")
_ADDED_PRODUCT = "aten.baddbmm.default"
_SOFTMAX = "aten._softmax.default"
_NOISE = (CAST, "aten.permute.default", "aten.bernoulli.p")
_FLOATS = ("float32", "bfloat16", "float16")
LOW = -1e4
"""What is filled in counts as forbidden from here down: its weight is zero beside any score that is not as low."""


class Refused(Exception):
    """Why a softmax between two products stays as it is written; `str()` is one clause for people."""


class Operand(NamedTuple):
    """The value `name` as node number `reader` takes it; turned: its matrices are to be transposed."""

    name: str
    reader: int
    turned: bool = False


class Step(NamedTuple):
    """What is done to scores, as kind: "mul", "div", "add" (`factor` times x), "fill" (`factor` where x holds, or with
    `keep` where it does not).

    x: a number, or a tensor as node number `reader` takes it. given: the scores' operand that is expanded of it. lead:
    leading sizes of the scores there. spread: those that it is to be expanded to, if it is for part of one of `lead`.
    """

    kind: str
    x: float | str
    factor: float = 1.0
    keep: bool = False
    reader: int = 0
    given: Operand | None = None
    lead: tuple[Dim, ...] = ()
    spread: tuple[Dim, ...] = ()


class Match(NamedTuple):
    """One attention: the nodes that it is made of, in order, and what they do.

    product, softmax, last: the product of query and key, the softmax, the product with the value. lead: leading sizes
    in which the scores are seen. turned: the last product gives the output transposed.
    """

    nodes: tuple[int, ...]
    product: int
    softmax: int
    last: int
    query: Operand
    key: Operand
    value: Operand
    steps: tuple[Step, ...]
    leads: tuple[tuple[Dim, ...], ...]
    dropout: float
    turned: bool


Path = list[tuple[int, Step | None]]


class Weights(NamedTuple):
    """Operand number `side` of a product, what makes it of the result of node number `softmax`, and the probability of
    dropout."""

    side: int
    softmax: int
    after: list[int]
    dropout: float


def find_weights(program: Program, last: int) -> Weights | None:
    """The operand of product number `last` that comes of a softmax; None if none does. Raises `Refused`."""
    for side, arg in enumerate(program.nodes[last].args):
        found = _to_softmax(program, arg.name) if isinstance(arg, Ref) else None
        if found is not None:
            return Weights(side, *found)
    return None


def find(program: Program, last: int, found: Weights) -> Match:
    """The attention whose output node number `last` makes of such weights. Raises `Refused`."""
    side, softmax, after, dropout = found
    names = [arg.name for arg in program.nodes[last].args if isinstance(arg, Ref)]
    is_turned = program.is_turned(program.nodes[softmax].results[0].name, after)
    if is_turned is None or is_turned != bool(side) or len(set(names)) == 1:
        raise Refused("the weights are not summed over the last dimension with the values")
    scores = _softmax_of(program, softmax)
    path = _to_product(program, scores)
    if isinstance(path, Refused):
        raise path
    product = path[0][0]
    query, key, steps, leads = _placed(program, path, scores)
    value = Operand(names[1 - side], last, is_turned)
    nodes = (*(index for index, _ in path), softmax, *after, last)
    return Match(nodes, product, softmax, last, query, key, value, steps, leads, dropout, is_turned)


def _to_softmax(program: Program, name: str) -> tuple[int, list[int], float] | None:
    """The softmax that weights are of, what makes them of it, the probability of dropout; None if they are of none."""
    after: list[int] = []
    dropout = 0.0
    while True:
        index = program.index_of(name)
        if index is None:
            return None
        node = program.nodes[index]
        if node.target == _SOFTMAX:
            return index, after[::-1], dropout
        dropped = _dropout(program, node)
        if dropped is not None:
            chance, noise = dropped
            if dropout:
                raise Refused("the weights are dropped twice")
            dropout = chance
            after += noise
        elif node.target not in LAYOUT and node.target != CAST:
            return None
        after.append(index)
        source = node.args[0]
        if not isinstance(source, Ref) or not _is_whole(program, source, node):
            return None
        name = source.name


def _dropout(program: Program, node: Node) -> tuple[float, list[int]] | None:
    """The probability of a dropout, and the nodes that make its factors: 0, or 1 / keep with probability keep."""
    if node.target == "aten.native_dropout.default":
        chance = node.args[1]
        return (float(chance), []) if isinstance(chance, (int, float)) and node.args[2] is not False else None
    found: list[int] = []
    factors = node.args[1] if node.target == "aten.mul.Tensor" else None
    while not found or program.nodes[found[-1]].target != "aten.bernoulli.p":
        index = program.index_of(factors.name) if isinstance(factors, Ref) else None
        target = None if index is None else program.nodes[index].target
        if index is None or target not in (_NOISE if found else ("aten.div.Scalar", "aten.div.Tensor")):
            return None
        found.append(index)
        factors = program.nodes[index].args[0]
    keep = program.nodes[found[-1]].args[1]
    if not isinstance(keep, float) or keep != program.number(program.nodes[found[0]].args[1]):
        return None
    return round(1 - keep, 15), found


def _is_whole(program: Program, source: Ref, node: Node) -> bool:
    """Whether layout or a cast leaves every element what it is, and there."""
    before, after = program.type_of(source.name), program.type_of(node.results[0].name)
    if before.device != after.device or before.dtype not in _FLOATS or after.dtype not in _FLOATS:
        return False
    return node.target != "aten.expand.default" or before.shape == after.shape


def _softmax_of(program: Program, index: int) -> str:
    """What the softmax takes, if it normalises the last dimension."""
    node = program.nodes[index]
    result = program.type_of(node.results[0].name)
    if node.args[1] not in (-1, len(result.shape) - 1) or len(result.shape) < 2:
        raise Refused("the softmax is not over the last dimension")
    if result.dtype not in _FLOATS:
        raise Refused(f"no fused kernel is for {result.dtype}")
    assert isinstance(node.args[0], Ref)
    return node.args[0].name


def _to_product(program: Program, name: str) -> Path | Refused:
    """The nodes from the product to the scores `name`, with what they do; or why there is no product."""
    index = program.index_of(name)
    if index is None:
        return Refused("the scores are no product")
    node = program.nodes[index]
    if node.target in PRODUCTS:
        return [(index, None)]
    if node.target == _ADDED_PRODUCT:
        return _added_product(program, node, index)
    why: Refused | None = None
    for source, step in _read(program, node, index):
        found = _to_product(program, source)
        if not isinstance(found, Refused):
            return [*found, (index, step)]
        why = why or found
    return why or Refused(f"{node.target} makes the scores")


def _added_product(program: Program, node: Node, index: int) -> Path | Refused:
    factors = [node.kwargs.get(key, 1) for key in ("beta", "alpha")]
    if not all(isinstance(factor, (int, float)) for factor in factors):
        return Refused("the scores are a product of another kind")
    beta, alpha = (float(factor) for factor in factors)  # type: ignore[arg-type]
    path: Path = [(index, None if alpha == 1 else Step("mul", alpha))]
    if beta:
        assert isinstance(node.args[0], Ref)
        path.append((index, _unexpanded(program, Step("add", node.args[0].name, beta), index)))
    return path


Read = list[tuple[str, Step | None]]
"""(the scores before the node, what it does to them): one entry for each operand that may be the scores."""


def _read(program: Program, node: Node, index: int) -> Read:
    """How a node makes scores; empty if it is in none of the known ways."""
    if node.target in LAYOUT or node.target == CAST:
        source = node.args[0]
        return [(source.name, None)] if isinstance(source, Ref) and _is_whole(program, source, node) else []
    reader = _STEPS.get(node.target)
    result = program.type_of(node.results[0].name)
    found = [] if reader is None or result.dtype not in _FLOATS else reader(program, node)
    return [
        (name, _unexpanded(program, step, index))
        for name, step in found
        if program.type_of(name).shape == result.shape and program.type_of(name).dtype in _FLOATS
    ]


def _unexpanded(program: Program, step: Step | None, reader: int) -> Step | None:
    """A step with what was expanded to be its tensor: an operand of scores is expanded to their shape anyway."""
    if step is None or not isinstance(step.x, str):
        return step
    name, given = step.x, Operand(step.x, reader)
    while (index := program.index_of(name)) is not None:
        node = program.nodes[index]
        if node.target != "aten.expand.default" or not isinstance(node.args[0], Ref):
            break
        name, reader = node.args[0].name, index
    return step._replace(x=name, reader=reader, given=given)


def _scaled(kind: str, program: Program, node: Node) -> Read:
    first, second = node.args[:2]
    found = [(first, second)] if kind == "div" or not isinstance(second, Ref) else [(first, second), (second, first)]
    read: Read = []
    for scores, other in found:
        known = program.number(other)
        if isinstance(scores, Ref) and known is None and isinstance(other, Ref):
            read.append((scores.name, Step(kind, other.name)))
        elif isinstance(scores, Ref) and known is not None and math.isfinite(known) and known:
            read.append((scores.name, Step(kind, known)))
    return read if len(node.args) == 2 and not node.kwargs else []


def _added(sign: float, program: Program, node: Node) -> Read:
    first, second = node.args[:2]
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    if not isinstance(first, Ref) or not isinstance(alpha, (int, float)):
        return []
    if not isinstance(second, Ref):
        return [(first.name, None)] if isinstance(second, (int, float)) else []  # the same for all keys of a query
    read: Read = [(first.name, Step("add", second.name, sign * alpha))]
    if sign > 0 and alpha == 1:
        read.append((second.name, Step("add", first.name)))
    return read


def _filled(program: Program, scores: Arg, mask: Arg, value: Arg, keep: bool = False) -> Read:
    low = program.number(value)
    if low is None or not low <= LOW or not isinstance(scores, Ref) or not isinstance(mask, Ref):
        return []
    is_bool = program.type_of(mask.name).dtype == "bool"
    return [(scores.name, Step("fill", mask.name, low, keep))] if is_bool else []


def _where(program: Program, node: Node) -> Read:
    mask, chosen, other = node.args
    return _filled(program, chosen, mask, other, keep=True) + _filled(program, other, mask, chosen)


def _assigned(program: Program, node: Node) -> Read:
    """scores[mask] = value, and scores[:, mask] = value."""
    scores, indices, value = node.args[:3]
    if not isinstance(scores, Ref) or not isinstance(indices, (List, Tuple)) or len(node.args) > 3:
        return []
    *before, mask = indices.items
    if any(item is not None for item in before) or not isinstance(mask, Ref):
        return []
    mine, theirs = program.type_of(mask.name).shape, program.type_of(scores.name).shape
    whole = len(before) + len(mine) == len(theirs) and mine == theirs[len(before) :]
    return _filled(program, scores, mask, value) if whole else []


_STEPS: dict[str, Callable[[Program, Node], Read]] = {
    "aten.mul.Tensor": partial(_scaled, "mul"),
    "aten.mul.Scalar": partial(_scaled, "mul"),
    "aten.div.Tensor": partial(_scaled, "div"),
    "aten.div.Scalar": partial(_scaled, "div"),
    "aten.add.Tensor": partial(_added, 1.0),
    "aten.add.Scalar": partial(_added, 1.0),
    "aten.sub.Tensor": partial(_added, -1.0),
    "aten.sub.Scalar": partial(_added, -1.0),
    "aten.masked_fill.Scalar": lambda program, node: _filled(program, *node.args),
    "aten.masked_fill.Tensor": lambda program, node: _filled(program, *node.args),
    "aten.where.self": _where,
    "aten.index_put.default": _assigned,
}


def _placed(
    program: Program, path: Path, scores: str
) -> tuple[Operand, Operand, tuple[Step, ...], tuple[tuple[Dim, ...], ...]]:
    """Query and key, the steps with the leading sizes at which they are, and all such sizes on the way."""
    product = path[0][0]
    source = program.nodes[product].results[0].name
    steps: list[Step] = []
    leads: list[tuple[Dim, ...]] = []
    turned: set[bool | None] = set()
    before: list[int] = []
    shape = program.type_of(source).shape
    for index, step in path:
        if step is not None:
            turned.add(program.is_turned(source, before))
            shape = program.type_of(program.nodes[index].results[0].name).shape
            steps.append(step._replace(lead=shape[:-2]))
        before.append(index)
        lead = program.type_of(program.nodes[index].results[0].name).shape
        if lead[-2:] in (shape[-2:], program.type_of(scores).shape[-2:]):
            leads.append(lead[:-2])
    turned.add(program.is_turned(source, before))
    is_layer = program.nodes[product].target == "aten.mm.default" and any(leads)  # of all rows with one matrix
    if len(turned) > 1 or None in turned or is_layer:
        raise Refused("the scores are a product of another kind")
    first, second = [arg.name for arg in program.nodes[product].args if isinstance(arg, Ref)][-2:]
    if turned.pop():
        return Operand(second, product, True), Operand(first, product), tuple(steps), tuple(leads)
    return Operand(first, product), Operand(second, product, True), tuple(steps), tuple(leads)
