"""Where written-out attention may be one call of a fused kernel, and what is asked of it there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from absint.meta import Meta
from aotgrad.written_attention.match import LOW, Match, Operand, Refused, Step
from aotgrad.written_attention.program import CAST, LAYOUT, Program
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.types import numel

_MOST_HEADS = 65535
"""What CUDA allows in the second and third dimension of a grid."""
_FITTING = {"float32": ("bfloat16", "float16")}
"""By dtype of the output: others of a mask that is added, of which nothing is lost."""


class Choice(NamedTuple):
    """kernel: the fused kernel for query, key and value and a mask (or None), is_causal, scale and dropout; None for
    none. drops: whether weights with dropout may be fused, whose mask the kernel then draws in its own way. learned:
    whether masks that have a gradient may be."""

    kernel: Callable[[list[Meta], Meta | None, bool, float, float], str | None]
    drops: bool = True
    learned: bool = True


class Site:
    """One match in its program. heads: (batch, heads) for the kernel. steps: those that remain beside `is_causal`, with
    the leading sizes in which their tensors are seen beside `heads`. masked_rows: whether all keys of a query may be
    masked."""

    def __init__(self, program: Program, match: Match, choice: Choice) -> None:
        self.program, self.match = program, match
        nodes = program.nodes
        self.result = program.type_of(nodes[match.last].results[0].name)
        self.dtype = self.result.dtype
        self.heads = self._heads()
        self._check_types()
        if len({nodes[index].checkpoint for index in match.nodes}) > 1:
            raise Refused("a checkpoint begins or ends inside of it")
        if match.dropout and not choice.drops:
            raise Refused("a kernel draws other random numbers than the dropout of the weights")
        self.steps = self._beside_heads()
        masks = [step for step in self.steps if step.kind in ("add", "fill")]
        forbidden = self._forbidden(masks[0]) if len(masks) == 1 else None
        self.is_causal = forbidden is not None and self._is_causal(forbidden)
        self.masked_rows = bool(masks) and (forbidden is None or bool(forbidden.all(-1).any()))
        if self.is_causal:
            self.steps = tuple(step for step in self.steps if step.kind in ("mul", "div"))

    def _heads(self) -> tuple[Dim, Dim]:
        """(batch, heads): the two leading sizes in which a mask differs, or in which the scores are seen somewhere."""
        for step in self.match.steps:
            lead = self.program.type_of(step.x).shape[:-2] if isinstance(step.x, str) else ()
            if len(step.lead) == 2 and any(size != 1 for size in lead):
                return step.lead[0], step.lead[1]
        for lead in self.match.leads:
            if len(lead) == 2:
                return lead[0], lead[1]
        longest = max(self.match.leads, key=len)
        return (numel(longest[:-1]), longest[-1]) if longest else (1, 1)

    def _check_types(self) -> None:
        program, match = self.program, self.match
        types = [program.type_of(operand.name) for operand in (match.query, match.key, match.value)]
        if any(one.device != self.result.device for one in types):
            raise Refused("the operands are on different devices")
        if max(program.hints(self.heads)) > _MOST_HEADS:
            raise Refused("there are more heads than blocks in a dimension of a grid")
        scores = program.type_of(program.nodes[match.product].results[0].name).dtype
        if scores != self.dtype and not (self._is_exact(match.query) and self._is_exact(match.key)):
            raise Refused(f"the scores are {scores}, the output is {self.dtype}")

    def _is_exact(self, operand: Operand) -> bool:
        """Whether nothing is lost when the value is cast to the dtype of the output."""
        name = operand.name
        while self.program.type_of(name).dtype != self.dtype:
            index = self.program.index_of(name)
            node = None if index is None else self.program.nodes[index]
            if node is None or node.target not in LAYOUT | {CAST} or not isinstance(node.args[0], Ref):
                return False
            name = node.args[0].name
        return True

    def _beside_heads(self) -> tuple[Step, ...]:
        """The steps, each with the leading sizes of its tensor beside `heads`."""
        placed: list[Step] = []
        lowest = -math.inf
        for step in self.match.steps:
            if step.kind == "fill":
                lowest = max(lowest, step.factor)
            elif step.kind in ("mul", "div") and any(other.kind == "fill" for other in placed):
                lowest = _still_low(step, lowest)
            if isinstance(step.x, str):
                self._check_tensor(step, step.x)
                if step.kind == "add" and not step.factor:
                    continue
                lead = _lead_beside(self.program.type_of(step.x).shape, step.lead, self.heads)
                spread = () if lead else step.lead
                step = step._replace(lead=lead or self.heads, spread=spread)
            placed.append(step)
        return tuple(placed)

    def _check_tensor(self, step: Step, x: str) -> None:
        given = self.program.type_of(x)
        if given.device != self.result.device and given.shape:
            raise Refused("a mask is on another device")
        if step.kind in ("mul", "div") and given.shape and given.shape[-1] != 1:
            raise Refused("the scores are scaled key by key")
        if step.kind == "add" and given.dtype not in (self.dtype, *_FITTING.get(self.dtype, ())):
            raise Refused(f"the mask that is added is {given.dtype}, the output is {self.dtype}")

    def _forbidden(self, step: Step) -> torch.Tensor | None:
        """Where a mask that literals decide forbids, if it does nothing else."""
        assert isinstance(step.x, str)
        found = self.program.constant(step.x)
        if found is None or step.kind == "fill":
            return found if found is None or not step.keep else ~found
        found = found * step.factor
        low = found <= LOW
        return low if bool((low | (found == 0)).all()) else None

    def _is_causal(self, forbidden: torch.Tensor) -> bool:
        """Whether all that is masked is every later key."""
        if forbidden.dim() < 2 or any(size != 1 for size in forbidden.shape[:-2]):
            return False
        rows, keys = forbidden.shape[-2:]
        if rows != keys or self.lengths != (rows, keys):
            return False
        return torch.equal(forbidden.view(rows, keys), torch.ones_like(forbidden).view(rows, keys).triu(1))

    @property
    def is_spread(self) -> bool:
        """Whether a mask has to be as large as the scores."""
        return any(step.spread for step in self.steps)

    @property
    def lengths(self) -> tuple[Dim, Dim]:
        """How many queries and keys."""
        *_, rows, keys = self.program.type_of(self.program.nodes[self.match.softmax].results[0].name).shape
        return rows, keys


def _still_low(step: Step, lowest: float) -> float:
    """What has been filled in, times a factor."""
    if isinstance(step.x, str):
        raise Refused("masked scores are scaled by a tensor")
    lowest = lowest * (step.x if step.kind == "mul" else 1 / step.x)
    if lowest > LOW:
        raise Refused("masked scores are scaled down")
    return lowest


def _lead_beside(shape: tuple[Dim, ...], form: tuple[Dim, ...], heads: tuple[Dim, Dim]) -> tuple[Dim, ...] | None:
    """The leading sizes (batch or 1, heads or 1) of an operand of scores with leading sizes `form`; None if it is for
    part of a size."""
    lead = shape[:-2]
    lead = (1,) * (len(form) - len(lead)) + lead
    if all(size == 1 for size in lead):
        return (1, 1)
    if form == heads:
        return lead
    if lead == form:
        return heads
    if all(size == 1 for size in lead[:-1]) and lead[-1] == form[-1] == heads[1]:
        return (1, heads[1])
    return None
