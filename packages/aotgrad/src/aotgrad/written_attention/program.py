"""What a match asks about the functional ATen that a trace has recorded: who made a value, its type, its content."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import torch

from absint import to_wire
from absint.symbolic import hint_of
from absint.targets import resolve
from absint.wire import from_arg
from aotgrad.executor import executor
from aotgrad.ops import is_pure
from aotgrad.torch_capabilities import TORCH
from stagewire.expr import Expr
from stagewire.graph import Arg, DeviceArg, Graph, Node, NonFinite, Ref, Value, leaves, map_arg, node_references
from stagewire.types import TensorType, numel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aotgrad.tracer.mode import TraceMode
    from aotgrad.tracer.sizes import SizesOf


LAYOUT = frozenset(
    f"aten.{name}"
    for name in ("view.default", "expand.default", "permute.default", "transpose.int", "t.default", "alias.default",
                 "unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "clone.default")
)  # fmt: skip
"""Ops whose result has the elements of their first operand, once each, if it has as many."""
CAST = "aten._to_copy.default"
_LARGEST = 1 << 24
"""Elements of what is computed here."""


class Program:
    """The nodes of a trace while it grows; what computes here does so outside of the trace's mode.

    starts: how many nodes there were before each captured call.
    """

    def __init__(self, mode: TraceMode, sizes: SizesOf) -> None:
        self.mode, self.sizes = mode, sizes
        self.nodes = mode.recorder.nodes
        self.starts: list[int] = []
        self._definers: dict[str, int] = {}
        self._types: dict[str, TensorType] = {}
        self._seen = 0
        self._constants: dict[str, torch.Tensor | None] = {}

    def index_of(self, name: str) -> int | None:
        """The number of the node that made a value; None for an input."""
        for index in range(self._seen, len(self.nodes)):
            for value in self.nodes[index].results:
                self._definers[value.name] = index
        self._seen = len(self.nodes)
        return self._definers.get(name)

    def call_of(self, index: int) -> int:
        """The captured call that a node was recorded in."""
        return bisect_right(self.starts, index) - 1

    def type_of(self, name: str) -> TensorType:
        """The type of a value."""
        found = self._types.get(name)
        if found is None:
            found = self._types[name] = to_wire(self.mode.recorder.metas[name])
        return found

    def hints(self, sizes: Iterable[object]) -> tuple[int, ...]:
        """Sizes as they were at capture."""
        return tuple([size if isinstance(size, int) else hint_of(self.sizes(size)) for size in sizes])  # type: ignore[arg-type]

    def is_turned(self, source: str, path: Iterable[int]) -> bool | None:
        """Whether nodes of layout leave the matrices of `source`, one after the other, or turn them; None for others.

        They run on the sizes at capture.
        """
        shape = self.hints(self.type_of(source).shape)
        like = torch.empty(shape, device="meta")
        for node in map(self.nodes.__getitem__, path):
            if node.target not in LAYOUT or node.target == "aten.clone.default":
                continue
            rest = [from_arg(arg, self._hint) for arg in node.args[1:]]
            try:
                like = resolve(node.target)(like, *rest)
            except RuntimeError:
                return None  # a view of what a copy has put in another order
        for turned, found in ((False, like), (True, like.mT)):
            if found.shape[-2:] == shape[-2:] and found.is_contiguous():
                return turned
        return None

    def _hint(self, leaf: Ref | Expr) -> int:
        assert isinstance(leaf, Expr)
        return self.hints([leaf])[0]

    def number(self, arg: Arg) -> float | None:
        """The Python number that an argument is, or that a tensor holds everywhere; None if it is not known."""
        if isinstance(arg, NonFinite):
            return float(arg.text)
        if isinstance(arg, (int, float)):
            return float(arg)
        if not isinstance(arg, Ref):
            return None
        index = self.index_of(arg.name)
        if index is not None and self.nodes[index].target in ("aten.full.default", "aten.full_like.default"):
            return self.number(self.nodes[index].args[1])
        found = None if self.type_of(arg.name).shape else self.constant(arg.name)
        return None if found is None or found.is_complex() else float(found)

    def constant(self, name: str) -> torch.Tensor | None:
        """The tensor `name`, on the CPU, if literals decide it; else None."""
        if name not in self._constants:
            self._constants[name] = self._computed(name)
        return self._constants[name]

    def _computed(self, name: str) -> torch.Tensor | None:
        given, pending, needed = self.mode.constants, [name], set[int]()
        while pending:
            index = self.index_of(pending[-1])
            if pending.pop() in given or index in needed:
                continue
            if index is None or not self._is_literal(self.nodes[index]):
                return None
            needed.add(index)
            pending += node_references(self.nodes[index])
        inputs = tuple(Value(key, self.type_of(key)) for key in given)
        nodes = tuple(_on_cpu(self.nodes[index]) for index in sorted(needed))
        with TORCH.no_modes(), torch.no_grad():
            return executor(Graph(inputs, nodes, (Ref(name),)))(*given.values())[0]  # type: ignore[no-any-return]

    def _is_literal(self, node: Node) -> bool:
        types = [value.type for value in node.results]
        if not is_pure(node) or any(not isinstance(one, TensorType) or not one.is_static for one in types):
            return False
        if any(numel(one.shape) > _LARGEST for one in types):  # type: ignore[union-attr, operator]
            return False
        return not any(isinstance(leaf, Expr) for arg in (*node.args, *node.kwargs.values()) for leaf in leaves(arg))


def _on_cpu(node: Node) -> Node:
    def replaced(leaf: Arg) -> Arg:
        return DeviceArg("cpu") if isinstance(leaf, DeviceArg) else leaf

    kwargs = {key: map_arg(arg, replaced) for key, arg in node.kwargs.items()}
    return Node(node.target, node.args, kwargs, node.results)
