"""Memory of the reference interpreter: buffers as strided windows on flat byte arrays. Needs numpy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loopir.errors import NotInterpretable
from loopir.numpy_ops import Array, held_type, rounded
from stagewire.expr import evaluate
from stagewire.loop import Buffer
from stagewire.types import ITEM_SIZE, TensorType

POISON = 0x5A


class Memory:
    """Allocates, frees and shares; values of freed and of never written memory are recognisable rubbish."""

    def __init__(self, buffers: tuple[Buffer, ...], symbols: Mapping[str, int]) -> None:
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self.symbols = symbols
        self.bytes: dict[str, Array] = {}

    def shape(self, type: TensorType) -> tuple[int, ...]:
        """The shape in numbers."""
        return tuple(evaluate(size, self.symbols) for size in type.shape)

    def allocate(self, name: str) -> None:
        """Memory for a kernel's or extern's buffer, or that of the buffer it takes over."""
        buffer = self.buffers[name]
        if name in self.bytes:
            return
        if buffer.reuse is not None:
            self.bytes[name] = self.bytes[buffer.reuse]
            return
        shape, stride = self.shape(buffer.type), self._stride(buffer.type)
        last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else -1
        self.bytes[name] = np.full((last + 1) * ITEM_SIZE[buffer.type.dtype], POISON, np.uint8)

    def _stride(self, type: TensorType) -> tuple[int, ...]:
        return tuple(evaluate(step, self.symbols) for step in type.stride)

    def free(self, name: str) -> None:
        """Forget the buffer; reading it later is an error."""
        memory = self.bytes.pop(name)
        memory.fill(POISON)

    def flat(self, name: str) -> Array:
        """The elements from the buffer's first on, as stored (bfloat16 as uint16 bits)."""
        buffer = self.buffers[name]
        if buffer.role == "view":
            base = self.buffers[buffer.base or ""]
            start = evaluate(buffer.type.storage_offset - base.type.storage_offset, self.symbols)
            return self.flat(base.name)[start:]
        if name not in self.bytes:
            raise NotInterpretable(f"buffer {name} has no memory here: not allocated yet, or freed")
        dtype = buffer.type.dtype
        stored = np.uint16 if dtype == "bfloat16" else held_type(dtype)
        return self.bytes[name].view(stored)

    def set(self, name: str, value: Array) -> None:
        """Give a buffer a logical value."""
        buffer = self.buffers[name]
        self.bytes.pop(name, None)
        self.allocate(name)
        shape = self.shape(buffer.type)
        if tuple(np.shape(value)) != shape:
            raise NotInterpretable(f"{name} has shape {shape}, the value {np.shape(value)}")
        self.window(name)[...] = encode(rounded(np.asarray(value), buffer.type.dtype), buffer.type.dtype)

    def get(self, name: str) -> Array:
        """The logical value of a buffer (a copy)."""
        return decode(self.window(name).copy(), self.buffers[name].type.dtype)

    def window(self, name: str) -> Array:
        """The buffer as a strided array over its memory."""
        type = self.buffers[name].type
        flat = self.flat(name)
        shape, stride = self.shape(type), self._stride(type)
        if 0 not in shape and sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) >= flat.size:
            raise NotInterpretable(
                f"{name} of shape {shape} and stride {stride} reaches beyond its {flat.size} elements"
            )
        strides = tuple(step * flat.itemsize for step in stride)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)


def encode(values: Array, dtype: str) -> Array:
    """Values as stored."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(values.shape)
    return values


def decode(stored: Array, dtype: str) -> Array:
    """Stored elements as values."""
    if dtype == "bfloat16":
        wide = np.ascontiguousarray(stored).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(stored.shape)
    return stored
