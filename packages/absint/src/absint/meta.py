"""`Meta`: the type of one strided tensor, and the arithmetic every result-type rule starts from.

    Meta(shape, stride, dtype, device, storage_offset)

Sizes, strides and offset count elements. Rules use only the ordinary integer operators on them, so
that a symbolic integer can stand wherever an `int` stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from absint.errors import SymbolicSize, UnsupportedTensor
from absint.strides import contiguous_stride
from absint.symbolic.size import dim_of
from stagewire.expr import Dim, Expr
from stagewire.types import TensorType, reach

CPU = torch.device("cpu")
_INT = {int}


class Meta(msgspec.Struct, frozen=True, gc=False):
    """Type of one strided tensor: sizes, strides and offset in elements, dtype and true device.

    >>> contiguous((2, 3), torch.float32)
    Meta(float32[2, 3])
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device = CPU
    storage_offset: int = 0

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether all sizes, strides and the offset are plain ints."""
        return {type(self.storage_offset), *map(type, self.shape), *map(type, self.stride)} == _INT

    def __repr__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        if self.stride != contiguous_stride(self.shape):
            text += f" stride={list(self.stride)}"
        if self.storage_offset != 0:
            text += f" offset={self.storage_offset}"
        if self.device != CPU:
            text += f" on {self.device}"
        return f"Meta({text})"


def contiguous(shape: Sequence[int], dtype: torch.dtype, device: torch.device = CPU) -> Meta:
    """The type of a fresh row-major tensor."""
    shape = tuple(shape)
    return Meta(shape, contiguous_stride(shape), dtype, device)


def span(meta: Meta) -> int:
    """The elements of memory from its start to the last one of a tensor."""
    return 0 if 0 in meta.shape else meta.storage_offset + reach(meta.shape, meta.stride)


def leaves(tree: Any) -> Iterator[Any]:
    """What lists, tuples and dicts hold that is none of these."""
    if isinstance(tree, (list, tuple, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(item)
    else:
        yield tree


def map_leaves(tree: Any, visit: Callable[[Any], Any]) -> Any:
    """The same tree with `visit` of each leaf."""
    if isinstance(tree, dict):
        return {key: map_leaves(item, visit) for key, item in tree.items()}
    return type(tree)([map_leaves(item, visit) for item in tree]) if isinstance(tree, (list, tuple)) else visit(tree)


def to_wire(meta: Meta, *, requires_grad: bool = False) -> TensorType:
    """The document form of `meta`."""
    static = meta.is_static
    return TensorType(
        str(meta.dtype).removeprefix("torch."),
        meta.shape if static else tuple([size if type(size) is int else dim_of(size) for size in meta.shape]),
        meta.stride if static else tuple([step if type(step) is int else dim_of(step) for step in meta.stride]),
        dim_of(meta.storage_offset),
        str(meta.device),
        requires_grad,
    )


def from_wire(wire: TensorType, size_of: Callable[[Expr], int] | None = None) -> Meta:
    """The in-memory form of a document's tensor type.

    `size_of` gives the integer for a symbolic size; without it a symbolic size raises `SymbolicSize`.
    """

    def integer(dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if size_of is None:
            raise SymbolicSize(f"the size {dim} of {wire} is symbolic")
        return size_of(dim)

    return Meta(
        tuple(map(integer, wire.shape)),
        tuple(map(integer, wire.stride)),
        getattr(torch, wire.dtype),
        torch.device(wire.device),
        integer(wire.storage_offset),
    )


def from_tensor(tensor: torch.Tensor) -> Meta:
    """The type of a real strided tensor; any other layout raises `UnsupportedTensor`."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedTensor(f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}")
    return Meta(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device,
        tensor.storage_offset(),
    )
