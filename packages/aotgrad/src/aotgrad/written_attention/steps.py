"""What is done to scores between the product and the softmax, as data.

    step ::= ("mul", x) | ("div", x) | ("add", x, factor) | ("fill", mask, value, keep) | ("form", sizes)

`x` is a number or a tensor. "fill": `value` where the mask holds, or with `keep` where it does not. "form": what
follows sees the scores with these leading sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aotgrad.written_attention import names
from aotgrad.written_attention.constants import number
from aotgrad.written_attention.program import Program
from stagewire.expr import Dim
from stagewire.graph import Arg, Ellipsis, Node, NonFinite, Ref, Slice, Tuple

__all__ = ["LOW", "Step", "encoded", "steps_of"]

Step = tuple[Any, ...]
LOW = -1e4
"""What is filled in counts as forbidden from here down: its weight is zero beside any score that is not as low."""
FLOATS = ("float32", "bfloat16", "float16")


def encoded(steps: tuple[Step, ...]) -> Tuple:
    """Steps as an argument of a node."""
    return Tuple(tuple([Tuple(tuple([_arg(item) for item in step])) for step in steps]))


def _arg(item: Any) -> Arg:
    if isinstance(item, float) and not math.isfinite(item):
        return NonFinite("nan" if math.isnan(item) else "inf" if item > 0 else "-inf")
    return Tuple(item) if isinstance(item, tuple) else item


Read = list[tuple[str, tuple[Step, ...]]]
"""(the scores before the call, the steps that it is): one entry for each operand that may be the scores."""


def steps_of(program: Program, node: Node, result: str) -> Read:
    """How the call makes the scores `result`; empty if it is none of the known ways."""
    read = _READERS.get(node.target)
    if read is None or "out" in node.kwargs:
        return []
    found = read(program, node)
    return [(name, steps) for name, steps in found if _keeps_shape(program, name, result, steps)]


def _keeps_shape(program: Program, name: str, result: str, steps: tuple[Step, ...]) -> bool:
    tensors = [x.name for step in steps for x in step[1:2] if isinstance(x, Ref)]
    if not program.types.keys() >= {name, result, *tensors}:
        return False
    before, after = program.types[name], program.types[result]
    if before.device != after.device or before.dtype not in FLOATS or after.dtype not in FLOATS:
        return False
    if steps and steps[0][0] == "form":
        return len(after.shape) >= 2 and len(before.shape) >= 2 and before.shape[-2:] == after.shape[-2:]
    return before.shape == after.shape


def _operands(node: Node, *keys: str) -> list[Arg]:
    return [*node.args, *(node.kwargs[key] for key in keys if key in node.kwargs)]


def _scaled(kind: str) -> Callable[[Program, Node], Read]:
    def read(program: Program, node: Node) -> Read:
        operands = _operands(node, "other")
        if len(operands) != 2 or node.kwargs.keys() - {"other"}:
            return []
        first, second = operands
        found: Read = []
        if isinstance(first, Ref):
            found += _with(program, first, second, lambda x: (kind, x))
        if isinstance(second, Ref) and kind == "mul":
            found += _with(program, second, first, lambda x: (kind, x))
        return found

    return read


def _with(program: Program, scores: Ref, other: Arg, make: Callable[[Any], Step]) -> Read:
    known = number(program, other)
    if known is None and isinstance(other, Ref):
        return [(scores.name, (make(other),))]
    if known is None or not math.isfinite(known) or known == 0:
        return []
    return [(scores.name, (make(known),))]


def _added(sign: float) -> Callable[[Program, Node], Read]:
    def read(program: Program, node: Node) -> Read:
        operands = _operands(node, "other")
        alpha = node.kwargs.get("alpha", 1)
        if len(operands) != 2 or node.kwargs.keys() - {"other", "alpha"} or not isinstance(alpha, (int, float)):
            return []
        first, second = operands
        if isinstance(first, Ref) and isinstance(second, (int, float)):
            return [(first.name, ())]  # the same for all keys of a query
        if isinstance(second, Ref) and isinstance(first, (int, float)) and sign > 0:
            return [(second.name, ())]
        if not (isinstance(first, Ref) and isinstance(second, Ref)):
            return []
        found: Read = [(first.name, (("add", _unexpanded(program, second), sign * alpha),))]
        if sign > 0 and alpha == 1:
            found.append((second.name, (("add", _unexpanded(program, first), 1.0),)))
        return found

    return read


def _filled(program: Program, node: Node) -> Read:
    operands = _operands(node, "mask", "value")
    if len(operands) != 3 or not isinstance(operands[0], Ref):
        return []
    return _fill(program, operands[0], operands[1], operands[2], keep=False)


def _where(program: Program, node: Node) -> Read:
    operands = list(node.args)
    if len(operands) != 3 or node.kwargs:
        return []
    if node.target == "torch.Tensor.where":
        operands = [operands[1], operands[0], operands[2]]
    mask, chosen, other = operands
    found: Read = []
    if isinstance(chosen, Ref):
        found += _fill(program, chosen, mask, other, keep=True)
    if isinstance(other, Ref):
        found += _fill(program, other, mask, chosen, keep=False)
    return found


def _fill(program: Program, scores: Ref, mask: Arg, value: Arg, keep: bool) -> Read:
    low = number(program, value)
    if low is None or not low <= LOW or not isinstance(mask, Ref) or not _is_bool(program, mask):
        return []
    return [(scores.name, (("fill", _unexpanded(program, mask), low, keep),))]


def _is_bool(program: Program, mask: Ref) -> bool:
    return mask.name in program.types and program.types[mask.name].dtype == "bool"


def _unexpanded(program: Program, mask: Ref) -> Ref:
    """What was expanded to be the mask: an operand of scores is expanded to their shape anyway."""
    node = program.definer(mask.name)
    while node is not None and node.target in names.EXPAND and node.args and isinstance(node.args[0], Ref):
        mask = node.args[0]
        node = program.definer(mask.name)
    return mask


def _assigned(program: Program, node: Node) -> Read:
    """scores[mask] = value, and scores[:, mask] = value."""
    if len(node.args) != 3 or not isinstance(node.args[0], Ref):
        return []
    scores, index, value = node.args
    items = list(index.items) if isinstance(index, Tuple) else [index]
    *before, mask = items
    if not isinstance(mask, Ref) or not _is_bool(program, mask):
        return []
    whole = [item for item in before if item == Slice() or isinstance(item, Ellipsis)]
    mine, theirs = program.types[mask.name].shape, program.types[scores.name].shape
    covered = len(mine) == len(theirs) if not any(isinstance(item, Ellipsis) for item in before) else True
    covered |= len(before) + len(mine) == len(theirs)
    if len(whole) != len(before) or not covered or mine != theirs[len(theirs) - len(mine) :]:
        return []
    return _fill(program, scores, mask, value, keep=False)


def _cast(program: Program, node: Node) -> Read:
    first = node.args[0] if node.args else None
    return [(first.name, ())] if isinstance(first, Ref) else []


def _seen(program: Program, node: Node) -> Read:
    first = node.args[0] if node.args else None
    if not isinstance(first, Ref) or not node.results:
        return []
    lead: tuple[Dim, ...] = program.types[node.results[0].name].shape[:-2]
    return [(first.name, (("form", lead),))]


_READERS: dict[str, Callable[[Program, Node], Read]] = {
    **dict.fromkeys(names.MULTIPLY, _scaled("mul")),
    **dict.fromkeys(names.DIVIDE, _scaled("div")),
    **dict.fromkeys(names.ADD, _added(1.0)),
    **dict.fromkeys(names.SUBTRACT, _added(-1.0)),
    **dict.fromkeys(names.FILL, _filled),
    **dict.fromkeys(names.WHERE, _where),
    **dict.fromkeys(names.SET_ITEM, _assigned),
    **dict.fromkeys(names.CAST | names.SAME, _cast),
    **dict.fromkeys(names.SHAPE, _seen),
}
