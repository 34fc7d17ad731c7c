"""Which sizes of a frame's inputs are symbols, and what users say about single dimensions.

policy ::= everywhere | dimension* number*      by default those that were seen to change between calls
mark   ::= "dynamic" | "maybe" | "static"       in the attributes of a tensor, by dimension
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bytecap.errors import BadOption
from stagewire.capture import Source

_MARKS = "_stagefold_sizes"


@dataclass(frozen=True)
class SizeMark:
    """What a user said of a dimension: "dynamic", "maybe" or "static", and its range."""

    kind: str
    lower: int | None = None
    upper: int | None = None


@dataclass(frozen=True)
class SizePolicy:
    """Which sizes become symbols in a capture.

    enabled: False fixes all. everywhere: all sizes of tensors that the frame was given, and its ints. dimensions:
    (source of a tensor, dimension) of those that were seen to change; -1-d for the stride of dimension d. numbers:
    sources of ints and floats that were. of_any_value: those of them that data decides, which are 0 and 1 as
    often. fixed: places of sizes (`objects.numbers.symbols`) and numbers that are none.
    whole: whether the graph may not end in front of a layer that would need a program for each size.
    of_data: whether sizes and numbers that data decides are symbols too (else graphs end there).
    """

    enabled: bool = True
    everywhere: bool = False
    dimensions: frozenset[tuple[Source, int]] = field(default_factory=frozenset)
    numbers: frozenset[Source] = field(default_factory=frozenset)
    of_any_value: frozenset[Source] = field(default_factory=frozenset)
    fixed: frozenset[Source] = field(default_factory=frozenset)
    of_data: bool = False
    whole: bool = True

    def with_changes(
        self, dimensions: Iterable[tuple[Source, int]], numbers: Iterable[Source], fixed: Iterable[Source] = ()
    ) -> SizePolicy:
        """With more of each."""
        return replace(
            self,
            dimensions=self.dimensions.union(dimensions),
            numbers=self.numbers.union(numbers),
            fixed=self.fixed.union(fixed),
        )


def marks_of(tensor: torch.Tensor) -> dict[int, SizeMark]:
    """What users said of the tensor's dimensions."""
    return getattr(tensor, _MARKS, None) or {}


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Compile for all sizes of these dimensions at once (in min..max); a program that needs one size is an error.

    >>> mark_dynamic(torch.ones(8, 3), 0, min=2, max=64)
    """
    _mark(tensor, dim, SizeMark("dynamic", min, max))


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int | Iterable[int]) -> None:
    """Compile for all sizes of these dimensions at once, where the program allows it."""
    _mark(tensor, dim, SizeMark("maybe"))


def mark_static(tensor: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Compile for one size of these dimensions (None: of all), however often they change."""
    _mark(tensor, range(tensor.dim()) if dim is None else dim, SizeMark("static"))


def _mark(tensor: torch.Tensor, dim: int | Iterable[int], mark: SizeMark) -> None:
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    rank = tensor.dim()
    for one in dims:
        if not -rank <= one < rank:
            raise BadOption(f"dimension {one} of a tensor with {rank}", fix="Name a dimension that the tensor has.")
    known: Any = dict(marks_of(tensor))
    setattr(tensor, _MARKS, {**known, **{one % rank: mark for one in dims}})
