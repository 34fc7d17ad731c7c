"""`Recorder`: the growing list of recorded nodes, their names and types.

Offsets of slices and selections are recorded as later stages want them: counted from the front, inside of the
dimension. What is negative or beyond the end only the trace can tell where sizes are symbolic: it knows ranges and
conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from absint import Meta, to_wire
from absint.rules.shapes import wrap_dim
from absint.rules.view import clamp_slice
from absint.schema import effect_of
from absint.symbolic import NUMBERS, dim_of, is_symbolic
from absint.wire import to_arg
from aotgrad.errors import UnwirableValue
from stagewire.graph import Node, Phase, Ref, SourceLine, Value
from stagewire.types import NoneType, TensorType

# Keyword arguments that say nothing about the result when they have these values.
_SILENT = {"layout": (torch.strided, None), "pin_memory": (False, None), "generator": (None,), "device": (None,),
           "dtype": (None,), "memory_format": (None,), "non_blocking": (False,)}  # fmt: skip

_ATOMS = frozenset((Ref, int, bool, type(None), str))


class Recorder:
    """Appends nodes in SSA form. `phase`, `line` and `checkpoint` go onto every node recorded while they stand.

    metas: type of every value by name. symbolic: whether sizes may be symbolic.
    """

    def __init__(self, *, symbolic: bool = False) -> None:
        self.symbolic = symbolic
        self.nodes: list[Node] = []
        self.metas: dict[str, Meta] = {}
        self.phase: Phase = "forward"
        self.line: SourceLine | None = None
        self.checkpoint: int | None = None
        self._count: dict[str, int] = {}
        self._names: dict[tuple[torch.dtype, torch.device], tuple[str, str]] = {}

    def fresh_name(self, stem: str) -> str:
        """`stem`, or `stem_1`, `stem_2`... where it is taken."""
        count = self._count.get(stem, 0)
        name = f"{stem}_{count}" if count else stem
        while name in self.metas:
            count += 1
            name = f"{stem}_{count}"
        self._count[stem] = count + 1
        return name

    def define(self, name: str, meta: Meta) -> Ref:
        """A value that no node makes: an input."""
        self.metas[name] = meta
        return Ref(name)

    def maker(self, name: str) -> Node | None:
        """The node that made a value; None for an input."""
        return next((node for node in reversed(self.nodes) if any(one.name == name for one in node.results)), None)

    def record(self, target: str, args: Sequence[Any], kwargs: dict[str, Any], types: Any) -> Any:
        """Append one node; returns `Ref`s in the structure of `types`: Metas, None, numbers; tuples, lists of these."""
        if self.symbolic and target in CANONICAL:
            args = CANONICAL[target](self.metas, list(args))
        results: list[Value] = []
        refs = self._results(target.split(".", 2)[1], types, results)
        self.nodes.append(
            Node(
                target,
                tuple([a if type(a) in _ATOMS else to_arg(a) for a in args]),
                {k: to_arg(v) for k, v in kwargs.items() if k not in _SILENT or v not in _SILENT[k]} if kwargs else {},
                tuple(results),
                self.line,
                self.phase,
                effect_of(target),
                self.checkpoint,
            )
        )
        return refs

    def _results(self, stem: str, types: Any, results: list[Value], *, inside: bool = False) -> Any:
        if type(types) is Meta:
            name = self.fresh_name(stem)
            self.metas[name] = types
            dtype, device = self._names_of(types)
            if self.symbolic:
                shape, stride = tuple(map(dim_of, types.shape)), tuple(map(dim_of, types.stride))
                wire = TensorType(dtype, shape, stride, dim_of(types.storage_offset), device)
            else:
                wire = TensorType(dtype, types.shape, types.stride, types.storage_offset, device)
            results.append(Value(name, wire))
            return Ref(name)
        if isinstance(types, (tuple, list)):
            return type(types)([self._results(stem, item, results, inside=True) for item in types])
        if types is None or (inside and isinstance(types, NUMBERS)):  # a number that a rule knows, beside tensors
            if inside:
                results.append(Value(self.fresh_name(f"{stem}_none"), NoneType()))
            return None
        raise UnwirableValue(f"a result of type {type(types).__name__}")

    def _names_of(self, meta: Meta) -> tuple[str, str]:
        """dtype and device as documents write them; looked up, since printing a torch.device takes longer."""
        key = (meta.dtype, meta.device)
        names = self._names.get(key)
        if names is None:
            wire = to_wire(meta)
            names = self._names[key] = (wire.dtype, wire.device)
        return names


Arguments = list[Any]
Canonical = Callable[[dict[str, Meta], Arguments], Arguments]
ShapeOf = Callable[[dict[str, Meta], Arguments], Sequence[Any]]


def _of_tensor(metas: dict[str, Meta], args: Arguments) -> Sequence[Any]:
    return metas[args[0].name].shape


def _stated(metas: dict[str, Meta], args: Arguments) -> Sequence[Any]:
    return args[1]


def _sliced(leading: int, shape_of: ShapeOf = _of_tensor) -> Canonical:
    """For (dim, start, end, step) after `leading` arguments."""

    def canonical(metas: dict[str, Meta], args: Arguments) -> Arguments:
        dim, start, end, *rest = [*args[leading:], *(0, None, None, 1)[len(args) - leading :]]
        shape = shape_of(metas, args)
        size = shape[wrap_dim(dim, len(shape))]
        if not any(map(is_symbolic, (size, start, end))):
            return args
        return [*args[:leading], dim, *clamp_slice(size, start, end), *rest]

    return canonical


def _selected(leading: int, shape_of: ShapeOf = _of_tensor) -> Canonical:
    """For (dim, index) after `leading` arguments."""

    def canonical(metas: dict[str, Meta], args: Arguments) -> Arguments:
        dim, index = args[leading:]
        shape = shape_of(metas, args)
        size = shape[wrap_dim(dim, len(shape))]
        if type(index) is Ref or not (is_symbolic(size) or is_symbolic(index)):
            return args
        return [*args[:leading], dim, index + size if index < 0 else index]

    return canonical


CANONICAL: dict[str, Canonical] = {
    "aten.slice.Tensor": _sliced(1),
    "aten.slice_scatter.default": _sliced(2),
    "aten.slice_backward.default": _sliced(2, _stated),
    "aten.select.int": _selected(1),
    "aten.select_scatter.default": _selected(2),
    "aten.select_backward.default": _selected(2, _stated),
}
"""From the types of values and the arguments of a call to its arguments, by target."""
