"""The size symbols of one capture: which input makes which symbol, and what the document says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint import Meta
from absint.meta import from_tensor
from absint.symbolic import ShapeEnv, make_size
from bytecap.errors import FixedMarkedSize
from bytecap.graph.size_policy import SizeMark, SizePolicy, marks_of
from bytecap.guards.printing import print_source
from stagewire.capture import Reading, Source, Symbol
from stagewire.graph import SourceLine

SIZE = "torch.Tensor.size"
STRIDE = "torch.Tensor.stride"
_FREE = SizeMark("maybe")


class SizeSymbols:
    """Makes symbols for the sizes of inputs; equal sizes get one symbol (they are equal more often than by chance).

    env: what is known of them. sources: where the value of each is read.
    """

    def __init__(self, policy: SizePolicy, line: Callable[[], SourceLine]) -> None:
        self.policy = policy
        self.env = ShapeEnv(line)
        self.env.whole = policy.whole
        self.sources: dict[str, Source] = {}
        self._ranges: dict[str, tuple[int, int | None]] = {}
        self._by_hint: dict[int, Any] = {}

    def meta_of(self, real: torch.Tensor, source: Source, role: str) -> Meta | None:
        """The type of an input with its symbols; None where nothing of it is symbolic."""
        if not self.policy.enabled or role != "tensor" or not self._is_open(real, source):
            return None
        marks = marks_of(real)
        shape = tuple([self._size(real, source, dim, marks.get(dim)) for dim in range(real.dim())])
        stride = self._strides(real, source, shape)
        meta = from_tensor(real)
        made = Meta(shape, stride, meta.dtype, meta.device, meta.storage_offset)
        return None if made.is_static else made

    def _is_open(self, real: torch.Tensor, source: Source) -> bool:
        policy = self.policy
        return policy.everywhere or bool(marks_of(real)) or any(known == source for known, _ in policy.dimensions)

    def _size(self, real: torch.Tensor, source: Source, dim: int, mark: SizeMark | None) -> Any:
        size = real.shape[dim]
        if mark is None and (self.policy.everywhere or (source, dim) in self.policy.dimensions):
            mark = _FREE
        reading = Reading(SIZE, source, (dim,))
        if mark is None or mark.kind == "static" or size < 2 or reading in self.policy.fixed:
            return size
        if mark.kind == "dynamic":
            lower = 2 if mark.lower is None else max(mark.lower, 2)
            if size < lower or (mark.upper is not None and size > mark.upper):
                text = f"{print_source(reading)} is {size}, and was marked as dynamic in {lower}..{mark.upper or ''}"
                raise FixedMarkedSize(text, fix="Give mark_dynamic a range that holds all sizes.")
            return self._create(size, reading, lower, mark.upper, marked=print_source(reading))
        known = self._by_hint.get(size)
        if known is None:
            known = self._by_hint[size] = self._create(size, reading, 2, None)
        return known

    def number(self, real: int, source: Source) -> Any:
        """The int at `source` as a symbol of its own; None where it is fixed (0 and 1 decide too much)."""
        policy = self.policy
        wanted = source in policy.numbers or (policy.everywhere and getattr(source, "base", None) is None)
        if not policy.enabled or not wanted or real < 2 or source in policy.fixed:
            return None
        return self._create(real, source, 2, None)

    def computed(self, hint: int, source: Source) -> Any:
        """An int that is computed of others, as a symbol."""
        return self._create(hint, source, 2, None)

    def create_unknown(self, name: str, lower: int | None, upper: int | None) -> Any:
        """A symbol for a number that data decides."""
        return make_size(self.env, self.env.create_unknown(name, lower=lower, upper=upper))

    def _create(self, hint: int, source: Source, lower: int, upper: int | None, marked: str | None = None) -> Any:
        name = f"s{len(self.sources)}"
        self.sources[name] = source
        self._ranges[name] = lower, upper
        return make_size(self.env, self.env.create(name, hint, lower=lower, upper=upper, marked=marked))

    def _strides(self, real: torch.Tensor, source: Source, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Strides as products of sizes where they are: from the fastest dimension up."""
        steps, sizes = real.stride(), real.shape
        known: dict[int, Any] = {1: 1}
        made: list[Any] = list(steps)
        for dim in sorted(range(len(steps)), key=lambda d: (steps[d], sizes[d] == 1)):
            step = steps[dim]
            if step in known:
                made[dim] = known[step]
            elif (source, -1 - dim) in self.policy.dimensions and step > 1:
                reading = Reading(STRIDE, source, (dim,))
                made[dim] = step if reading in self.policy.fixed else self._create(step, reading, 2, None)
            known.setdefault(step * sizes[dim], made[dim] * shape[dim])
        return tuple(made)

    def close(self) -> None:
        """No more questions: the way back to the tracer, which asks for lines, is cut."""
        self.env.line = lambda: None

    def documents(self) -> tuple[Symbol, ...]:
        """The symbols as the capture lists them."""
        hints = self.env.hints
        return tuple(Symbol(name, source, hints[name], *self._ranges[name]) for name, source in self.sources.items())
