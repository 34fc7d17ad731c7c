"""Where written-out attention may be one call of a fused kernel, and that call."""

from __future__ import annotations

import math

import torch

from absint.meta import Meta, contiguous_stride
from aotgrad.written_attention import names
from aotgrad.written_attention.choice import Choice, hints
from aotgrad.written_attention.constants import constant
from aotgrad.written_attention.match import Match, Refused
from aotgrad.written_attention.operands import heads_of, lead_beside, tensor_type
from aotgrad.written_attention.program import Program
from aotgrad.written_attention.steps import LOW, Step, encoded
from stagewire.expr import Dim
from stagewire.graph import DTypeArg, Node, Ref, Tuple, node_references
from stagewire.types import TensorType

__all__ = ["TARGET", "Site"]

TARGET = "aotgrad.written_attention"
"""The target of the call that takes the place; `meaning.written_attention` is what it computes."""


class Site:
    """One match in its program. heads: (batch, heads) for the kernel."""

    def __init__(self, program: Program, match: Match) -> None:
        self.program, self.match = program, match
        self.result = tensor_type(program, program.nodes[match.last].results[0].name)
        self.dtype = self.result.dtype
        self.query, self.key = match.scores.first, match.scores.second
        self.value = match.values.second
        self.lead = self._sizes(match.scores.first, match.scores.labels[0], match.scores.labels[2][:-2])
        self.heads = heads_of(program, match.steps, self.lead)

    def call(self, choice: Choice) -> Node:
        """The call in place of the match. Raises `Refused`."""
        self._check_types()
        self._check_surroundings()
        steps = self._placed()
        is_causal = self._is_causal(steps)
        if is_causal:
            steps = tuple(step for step in steps if step[0] in ("mul", "div"))
        masks = [step for step in steps if step[0] in ("add", "fill")]
        match = self.match
        if not choice.learned and self._has_gradient(masks):
            raise Refused("a mask has a gradient: the kernel that gives it takes longer than products and a softmax")
        if match.dropout and not choice.drops:
            raise Refused("a kernel draws other random numbers than the dropout of the weights")
        if choice.kernel(self._metas(steps), self._mask(masks), is_causal, 1.0, match.dropout) is None:
            raise Refused("no fused kernel of the device takes it")
        weights = match.values.labels[0]
        named = {
            "scores": match.scores.equation,
            "values": match.values.equation,
            "heads": Tuple(self.heads),
            "lead": Tuple(self._sizes(match.values.first, weights, weights[:-2])),
            "order": Tuple(_order(self.program, self.result)),
            "dtype": DTypeArg(self.dtype),
            "dropout": match.dropout,
            "is_causal": is_causal,
            "masked_rows": self._may_mask_rows(masks),
        }
        node = self.program.nodes[match.last]
        operands = (Ref(self.query), Ref(self.key), Ref(self.value))
        return Node(TARGET, (*operands, encoded(steps)), named, node.results, node.line)

    def _has_gradient(self, masks: list[Step]) -> bool:
        """Whether what is added to the scores wants a gradient (a bias that is learned)."""
        added = [one for step in masks for one in step[1:2] if isinstance(one, Ref)]
        types = [tensor_type(self.program, one.name) for one in added]
        return self.program.capture.state.grad_enabled and any(kind.requires_grad for kind in types)

    def _is_exact(self, name: str) -> bool:
        """Whether nothing is lost when the value is cast to the dtype of the output."""
        while True:
            if self.program.types[name].dtype == self.dtype:
                return True
            node = self.program.definer(name)
            if node is None or node.target not in names.CAST | names.LAYOUT:
                return False
            source = node.args[0] if node.args else None
            if not isinstance(source, Ref):
                return False
            name = source.name

    def _sizes(self, name: str, labels: str, wanted: str) -> tuple[Dim, ...]:
        shape = self.program.types[name].shape
        return tuple(shape[labels.index(label)] for label in wanted)

    def _check_types(self) -> None:
        types = self.program.types
        device = self.result.device
        mine = [types[name] for name in (self.query, self.key, self.value)]
        if any(kind.device != device for kind in mine):
            raise Refused("the operands are on different devices")
        if max(hints(self.program.capture, self.heads)) > _MOST_HEADS:
            raise Refused("there are more heads than blocks in a dimension of a grid")
        scores = self.program.nodes[min(self.match.calls)].results[0].type
        assert isinstance(scores, TensorType)
        if scores.dtype != self.dtype and not (self._is_exact(self.query) and self._is_exact(self.key)):
            raise Refused(f"the scores are {scores.dtype}, the output is {self.dtype}")

    def _check_surroundings(self) -> None:
        """Whether the operands are the same at the end of the match as they were at its begin."""
        program, match = self.program, self.match
        if program.capture.state.deterministic:
            raise Refused("deterministic algorithms are asked for")
        for part in program.capture.checkpoints:
            if len({part.first <= index < part.last for index in match.calls}) > 1:
                raise Refused("a checkpoint begins or ends inside of it")
        tensors = [x.name for step in match.steps for x in step[1:2] if isinstance(x, Ref)]
        for name in (self.query, self.key, *tensors):
            written = program.written(self._first_use(name), match.last, but=match.calls)
            if written is None:
                raise Refused("the grad mode or the like changes inside of it")
            if program.family(name) in written:
                raise Refused("an operand may be written before the output is computed")

    def _first_use(self, name: str) -> int:
        """The first call of the match that uses a value, or its begin, where a call before it does."""
        nodes = self.program.nodes
        using = [index for index in self.match.calls if name in node_references(nodes[index])]
        return min(using or self.match.calls)

    def _placed(self) -> tuple[Step, ...]:
        """The steps without changes of form, each with the leading sizes of its tensor beside `heads`."""
        form, masked, placed = self.lead, False, list[Step]()
        lowest = -math.inf
        for kind, x, *rest in self.match.steps:
            if kind == "form":
                form = x
                continue
            if kind == "fill":
                masked, lowest = True, max(lowest, rest[0])
            elif kind in ("mul", "div") and masked:
                lowest = self._still_low(kind, x, lowest)
            if not isinstance(x, Ref):
                placed.append((kind, x, *rest))
                continue
            self._check_tensor(kind, x)
            shape = self.program.types[x.name].shape
            if kind == "add" and rest[0] == 0:
                continue
            placed.append((kind, x, *rest, lead_beside(shape, form, self.heads)))
        return tuple(placed)

    def _still_low(self, kind: str, x: object, lowest: float) -> float:
        """What has been filled in, times a factor."""
        if isinstance(x, Ref):
            raise Refused("masked scores are scaled by a tensor")
        assert isinstance(x, float)
        lowest = lowest * (x if kind == "mul" else 1 / x)
        if lowest > LOW:
            raise Refused("masked scores are scaled down")
        return lowest

    def _check_tensor(self, kind: str, x: Ref) -> None:
        given = self.program.types[x.name]
        if given.device != self.result.device and given.shape:
            raise Refused("a mask is on another device")
        if kind in ("mul", "div") and given.shape and given.shape[-1] != 1:
            raise Refused("the scores are scaled key by key")
        if kind == "add" and given.dtype not in (self.dtype, *_FITTING.get(self.dtype, ())):
            raise Refused(f"the mask that is added is {given.dtype}, the output is {self.dtype}")

    def _is_causal(self, steps: tuple[Step, ...]) -> bool:
        """Whether all that is masked is every later key, and that for certain."""
        masks = [step for step in steps if step[0] in ("add", "fill")]
        forbidden = self._forbidden(masks[0]) if len(masks) == 1 else None
        if forbidden is None or forbidden.dim() < 2 or forbidden.shape[-1] != forbidden.shape[-2]:
            return False
        length = forbidden.shape[-1]
        if any(size != 1 for size in forbidden.shape[:-2]) or self._lengths() != (length, length):
            return False
        return bool(
            torch.equal(forbidden.view(length, length), torch.ones_like(forbidden).view(length, length).triu(1))
        )

    def _forbidden(self, step: Step) -> torch.Tensor | None:
        """Where a mask that literals decide forbids, if it does nothing else."""
        found = constant(self.program, step[1].name)
        if found is None or step[0] == "fill":
            return found if found is None or not step[3] else ~found
        found = found * step[2]
        low = found <= LOW
        return low if bool((low | (found == 0)).all()) else None

    def _may_mask_rows(self, masks: list[Step]) -> bool:
        """Whether all keys of a query may be masked."""
        known = self._forbidden(masks[0]) if len(masks) == 1 else None
        return bool(masks) and (known is None or bool(known.all(-1).any()))

    def _lengths(self) -> tuple[Dim, Dim]:
        first, second, result = self.match.scores.labels
        query, key = (self.program.types[name].shape for name in (self.match.scores.first, self.match.scores.second))
        return query[first.index(result[-2])], key[second.index(result[-1])]

    def _metas(self, steps: tuple[Step, ...]) -> list[Meta]:
        """Query, key and value as the kernel is given them."""
        scores, values = self.match.scores.labels, self.match.values.labels
        summed = next(label for label in scores[0] if label not in scores[2])
        width = next(label for label in values[1] if label not in values[0])
        wanted = (
            (self.query, scores[0], (*scores[2][:-1], summed)),
            (self.key, scores[1], (*scores[2][:-2], scores[2][-1], summed)),
            (self.value, values[1], (*values[0][:-2], values[0][-1], width)),
        )
        return [self._meta(name, labels, order) for name, labels, order in wanted]

    def _meta(self, name: str, labels: str, wanted: tuple[str, ...]) -> Meta:
        kind = self.program.types[name]
        turned = [labels.index(label) for label in wanted]
        shape, stride = (
            hints(self.program.capture, [sizes[dim] for dim in turned]) for sizes in (kind.shape, kind.stride)
        )
        heads = hints(self.program.capture, self.heads)
        dtype, device = getattr(torch, self.dtype), torch.device(kind.device)
        dense = kind.dtype != self.dtype or stride[-1] != 1 or len(shape) > 4
        whole = (*heads, *shape[-2:])
        if dense:
            return Meta(whole, contiguous_stride(whole), dtype, device)
        if len(shape) == 4 and shape[:2] == heads:
            return Meta(whole, stride, dtype, device)
        step = stride[0] if len(shape) == 3 else shape[-2] * shape[-1]
        return Meta(whole, (step * heads[1], step, *stride[-2:]), dtype, device)

    def _mask(self, masks: list[Step]) -> Meta | None:
        """The mask as the kernel is given it."""
        if not masks:
            return None
        sizes = [1, 1, 1, hints(self.program.capture, self._lengths())[1]]
        for step in masks:
            rows = self.program.types[step[1].name].shape[-2:-1]
            for dim, size in enumerate(hints(self.program.capture, (*step[-1], *(rows or (1,))))):
                sizes[dim] = max(sizes[dim], size)
        shape = tuple(sizes)
        return Meta(shape, contiguous_stride(shape), getattr(torch, self.dtype), torch.device(self.result.device))


_MOST_HEADS = 65535
"""What CUDA allows in the second and third dimension of a grid."""

_FITTING = {"float32": ("bfloat16", "float16")}
"""By dtype of the output: others of a mask that is added, of which nothing is lost."""


def _order(program: Program, kind: TensorType) -> tuple[int, ...]:
    """Dimensions from the biggest stride to the smallest."""
    stride, shape = hints(program.capture, kind.stride), hints(program.capture, kind.shape)
    return tuple(sorted(range(len(stride)), key=lambda dim: (-stride[dim], -shape[dim], dim)))
