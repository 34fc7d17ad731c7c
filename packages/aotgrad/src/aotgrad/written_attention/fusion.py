"""Attention is found while the forward is traced, and a fused kernel put in its place before autograd goes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from absint.forms.attention import ATTENTION_AMONG
from absint.gradients import TARGET as GRADIENT
from absint.meta import Meta, contiguous
from absint.targets import resolve
from absint.wire import from_arg
from aotgrad.ops import is_pure
from aotgrad.torch_capabilities import TORCH
from aotgrad.tracer.attention import ATTENTION, attention_call
from aotgrad.tracer.mode import TraceMode
from aotgrad.tracer.sizes import SizesOf
from aotgrad.tracer.values import Traced
from aotgrad.written_attention.match import PRODUCTS, Match, Operand, Refused, Step, find, find_weights
from aotgrad.written_attention.meaning import operands
from aotgrad.written_attention.program import CAST, LAYOUT, Program
from aotgrad.written_attention.site import Choice, Site
from stagewire.capture import CUSTOM, Capture
from stagewire.expr import Expr
from stagewire.grad import Rewrite
from stagewire.graph import LASTING, Graph, Node, Ref, node_references
from stagewire.graph_passes import output_names, with_nodes

_SAME_ORDER = LAYOUT - {"aten.permute.default", "aten.transpose.int", "aten.t.default"}


class Fusion:
    """Follows a trace. notes: what was fused or not, and why. dropped: whether weights with dropout were.

    replaces: False only looks. A match is replaced at the call that makes its output, when nobody knows yet who else
    reads scores or weights; `settle` says at the end whether anything did, and the next trace leaves that one alone.
    """

    def __init__(self, choice: Choice, *, replaces: bool = True) -> None:
        self.choice, self.replaces = choice, replaces
        self.dropped = False
        self.notes: dict[int, Rewrite] = {}
        self._known: dict[int, str] = {}
        self._kernels: dict[tuple[torch.device, torch.dtype], bool] = {}

    def begin(self, capture: Capture, mode: TraceMode, sizes: SizesOf, values: dict[str, Any]) -> None:
        """A trace begins. values: what the names of the capture stand for."""
        self.capture, self.mode, self.values = capture, mode, values
        self.program = Program(mode, sizes)
        self.notes.clear()
        self.dropped = False
        self._matches: dict[int, Match] = {}
        self._grad_modes: list[bool] = []
        # Gradients inside of a program may be differentiated, unlike a kernel's.
        self._active = all(node.target != GRADIENT for node in capture.graph.nodes)

    def before(self) -> None:
        """A captured call is made."""
        self.program.starts.append(len(self.program.nodes))
        self._grad_modes.append(torch.is_grad_enabled())

    def after(self, node: Node, results: list[Any]) -> list[Any]:
        """The results of a captured call, or what stands for them."""
        if "_softmax" not in self.mode.recorder.metas:  # the name of the first one's result
            return results
        program, call = self.program, len(self.program.starts) - 1
        if not self._active or len(results) != 1 or type(results[0]) is not Traced:
            return results
        is_one = node.target.startswith(CUSTOM) or node.target in (ATTENTION, ATTENTION_AMONG)
        last = None if is_one else self._product(results[0], call)
        if last is None:
            return results
        try:
            weights = find_weights(program, last)
            if weights is None:
                return results
            if call in self._known:
                raise Refused(self._known[call])
            if not self._has_kernel(results[0].meta):
                raise Refused("no fused kernel of the device takes it")
            with TORCH.no_modes():
                match = find(program, last, weights)
                site = Site(program, match, self.choice)
            fused = self._fused(site, match, call, results[0])
        except Refused as why:
            self.notes[call] = Rewrite("attention", str(why), refused=True, line=node.line)
            return results
        self.notes[call] = Rewrite("attention", "by a fused kernel", line=node.line)
        self._matches[call] = match
        self.dropped = self.dropped or match.dropout > 0
        return [fused] if self.replaces else results

    def _has_kernel(self, result: Meta) -> bool:
        """Whether there is a kernel for the device and the dtype at all."""
        known = self._kernels.get((result.device, result.dtype))
        if known is None:
            metas = [contiguous((1, 1, 8, 8), result.dtype, result.device)] * 3
            known = self.choice.kernel(metas, None, False, 1.0, 0.0) is not None
            self._kernels[result.device, result.dtype] = known
        return known

    def _product(self, result: Traced, call: int) -> int | None:
        """The product that a call returns, in another layout at most."""
        if result.value is None or result.memory.generation or result.memory.input is not None:
            return None
        for index, node in self._up(result.value.name, call):
            if node.target in PRODUCTS:
                return index
            if node.target not in LAYOUT:
                return None
        return None

    def _up(self, name: str, call: int) -> Iterator[tuple[int, Node]]:
        """The nodes of a call that made a value, each the first operand's of the one before."""
        while (index := self.program.index_of(name)) is not None and self.program.call_of(index) == call:
            node = self.program.nodes[index]
            yield index, node
            if not node.args or not isinstance(node.args[0], Ref):
                return
            name = node.args[0].name

    def _fused(self, site: Site, match: Match, call: int, result: Traced) -> Any:
        """The output by a fused kernel. Raises `Refused`."""
        if self.capture.state.deterministic:
            raise Refused("deterministic algorithms are asked for")
        sizes = [self._size(size) for size in (*site.heads, *site.lengths)]
        heads, (rows, keys) = sizes[:2], sizes[2:]
        dtype = getattr(torch, site.dtype)
        query = self._matrices(match.query, heads, rows).to(dtype)
        key = self._matrices(match.key, heads, keys).to(dtype)
        value = self._matrices(match.value, heads, keys).to(dtype)
        steps = [(step, self._operand(step), tuple(map(self._size, step.lead))) for step in site.steps]
        self._check_gradients(match, call, query, key)
        added = [x for step, x, _ in steps if step.kind == "add"]
        if not self.choice.learned and torch.is_grad_enabled() and any(x.requires_grad for x in added):
            raise Refused("a mask has a gradient: the kernel that gives it takes longer than products and a softmax")
        given = operands(query, key, value, steps, site.masked_rows)
        metas = [x.meta for x in (given.query, given.key, given.value)]  # type: ignore[attr-defined]
        mask = None if given.mask is None else given.mask.meta  # type: ignore[attr-defined]
        kernel = self.choice.kernel(metas, mask, site.is_causal, given.scale, match.dropout)
        if kernel is None:
            raise Refused("no fused kernel of the device takes it")
        if site.is_spread and kernel != "flex":
            raise Refused("a mask is for part of the leading sizes")
        out = self._attend(*given[:4], match.dropout, site.is_causal, scale=given.scale)
        return self._shaped(out.mT if match.turned else out, match, call, result)

    def _attend(self, *args: Any, **options: Any) -> Any:
        if self.program.type_of(args[0].value.name).device == "cpu":
            return scaled_dot_product_attention(*args, **options)
        return attention_call(*args, **options, mode=self.mode)

    def _size(self, size: Any) -> Any:
        return size if isinstance(size, int) else self.program.sizes(size)

    def _matrices(self, operand: Operand, heads: list[Any], length: Any) -> Any:
        """An operand of a product as (batch, heads, length, width)."""
        name, call = operand.name, self.program.call_of(operand.reader)
        width = self.program.type_of(name).shape[-2 if operand.turned else -1]
        for _, node in self._up(name, call):  # a copy or another shape of what has the same order is not needed
            if node.target not in _SAME_ORDER | {CAST} or self._held(name, call) is not None:
                break
            source = node.args[0].name  # type: ignore[union-attr]
            before, after = self.program.type_of(source), self.program.type_of(node.results[0].name)
            if (node.target == "aten.expand.default" and before.shape != after.shape) or before.device != after.device:
                break
            name = source
        found = self._tensor(name, call)
        if operand.turned:
            return found.reshape(*heads, self._size(width), length).mT
        return found.reshape(*heads, length, self._size(width))

    def _tensor(self, name: str, call: int) -> Any:
        """A value as a call read it: what the call was given, or what it made of that, made again above autograd."""
        held = self._held(name, call)
        if held is not None:
            return held
        index = self.program.index_of(name)
        if index is None or self.program.call_of(index) != call:
            raise Refused("an operand may be written before the output is computed")
        node = self.program.nodes[index]

        def value_of(leaf: Ref | Expr) -> Any:
            return self._tensor(leaf.name, call) if isinstance(leaf, Ref) else self.program.sizes(leaf)

        if not is_pure(node) or len(node.results) != 1:
            raise Refused(f"{node.target} makes an operand")
        args = [from_arg(arg, value_of) for arg in node.args]
        return resolve(node.target)(*args, **{key: from_arg(arg, value_of) for key, arg in node.kwargs.items()})

    def _held(self, name: str, call: int) -> Traced | None:
        """The tensor among a call's operands that still has this value."""
        found = [
            tensor
            for tensor in self._tensors(node_references(self.capture.graph.nodes[call]))
            if tensor.generation == tensor.memory.generation and tensor.value is not None and tensor.value.name == name
        ]
        if len({tensor.requires_grad for tensor in found}) > 1:
            raise Refused("a call takes one tensor with and without its history")
        return found[0] if found else None

    def _tensors(self, names: Iterable[str]) -> list[Traced]:
        found = [self.values.get(name) for name in names]
        return [one for one in found if type(one) is Traced]

    def _operand(self, step: Step) -> Any:
        """The number or tensor of a step."""
        if not isinstance(step.x, str):
            return step.x
        found = self._tensor(step.x, self.program.call_of(step.reader))
        given = self._held(step.given.name, self.program.call_of(step.given.reader)) if step.given else None
        found = found if given is None or given.requires_grad else found.detach()
        return found.expand(*map(self._size, step.spread), *found.shape[-2:]) if step.spread else found

    def _check_gradients(self, match: Match, call: int, query: Any, key: Any) -> None:
        """Whether autograd sees the calls of the match as their nodes are: none is a custom function's, under another
        grad mode, or takes a detached tensor."""
        program = self.program
        calls = sorted({program.call_of(index) for index in match.nodes})
        nodes = [self.capture.graph.nodes[index] for index in calls]
        if any(self._grad_modes[index] != self._grad_modes[call] for index in calls):
            raise Refused("the grad mode or the like changes inside of it")
        if any(node.target.startswith(CUSTOM) for node in nodes):
            raise Refused("a custom function computes part of it")
        if not torch.is_grad_enabled():
            return
        passed = {value.name for index in match.nodes[:-1] for value in program.nodes[index].results}
        names = {name for node in nodes for name in (*node_references(node), *(value.name for value in node.results))}
        tensors = [one for one in self._tensors(names) if one.value is not None and one.value.name in passed]
        if any(one.requires_grad != (query.requires_grad or key.requires_grad) for one in tensors):
            raise Refused("the scores or weights are detached, or query and key are")

    def _shaped(self, out: Any, match: Match, call: int, result: Traced) -> Any:
        """The output in the shape and the order of dimensions in memory that the call gave it."""
        assert result.value is not None
        path = []
        for index, node in self._up(result.value.name, call):
            if index == match.last:
                break
            path.append(node)
        for node in reversed(path):
            if node.target not in _SAME_ORDER:
                before = self.program.type_of(node.args[0].name).shape  # type: ignore[union-attr]
                rest = [from_arg(arg, self._size) for arg in node.args[1:]]
                out = resolve(node.target)(out.reshape(*map(self._size, before)), *rest)
        meta = result.meta
        out = out.reshape(meta.shape)
        kind = self.program.type_of(result.value.name)
        shape, stride = self.program.hints(kind.shape), self.program.hints(kind.stride)
        order = sorted(range(meta.ndim), key=lambda dim: (-stride[dim], -shape[dim], dim))
        return out.permute(order).contiguous().permute([order.index(dim) for dim in range(meta.ndim)])

    def refuse(self, reason: str) -> bool:
        """Leave alone in the next trace what was replaced in this one; whether anything was."""
        self._known.update(dict.fromkeys(self._matches, reason))
        return self.replaces and bool(self._matches)

    def settle(self, graph: Graph) -> Graph | None:
        """The graph without what was replaced; None where scores or weights are used elsewhere: trace again."""
        if not self._matches or not self.replaces:
            return graph
        places = {
            self.program.nodes[index].results[0].name: (call, index)
            for call, match in self._matches.items()
            for index in match.nodes
        }
        used, kept = output_names(graph), list[Node]()
        for node in reversed(graph.nodes):
            is_read = not used.isdisjoint([value.name for value in node.results])
            place = places.get(node.results[0].name) if node.results else None
            if is_read and place is not None:
                kind = "weights" if place[1] >= self._matches[place[0]].softmax else "scores"
                self._known.setdefault(place[0], f"the {kind} are used elsewhere too")
            if is_read or (place is None and node.effect in LASTING):
                used.update(node_references(node))
            if place is None:
                kept.append(node)
        if self._matches.keys() & self._known.keys():
            return None
        lost = set(places)
        while True:  # what nobody needs may still have read it: scores that were only asked for their type
            gone = [node for node in kept if not lost.isdisjoint(node_references(node))]
            if not gone:
                break
            kept = [node for node in kept if lost.isdisjoint(node_references(node))]
            lost = {value.name for node in gone for value in node.results}
        return with_nodes(graph, kept[::-1])
