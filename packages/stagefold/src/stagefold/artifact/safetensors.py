"""Tensors as the bytes of a safetensors file, and where they are in one.

file ::= u64 header_length, JSON {name: {dtype, shape, data_offsets}}, bytes
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from stagefold.errors import BadArtifact, CannotExport
from stagewire.grad import Constant
from stagewire.types import ITEM_SIZE

_NAMES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex128": "C128",
}  # fmt: skip
_OURS = {theirs: ours for ours, theirs in _NAMES.items()}


class Region(NamedTuple):
    """Where the bytes of a tensor are in a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def encode_tensors(tensors: Mapping[str, Constant]) -> bytes:
    """A file with these tensors. Raises `CannotExport` for a dtype that the layout has no name for."""
    header: dict[str, _Entry] = {}
    position = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise CannotExport(f"{name} is of {tensor.dtype}, which safetensors has no name for")
        header[name] = _Entry(_NAMES[tensor.dtype], tensor.shape, (position, position + len(tensor.data)))
        position += len(tensor.data)
    head = msgspec.json.encode(header)
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(tensor.data for tensor in tensors.values())


def locate_tensors(data: bytes | bytearray) -> dict[str, Region]:
    """Where each tensor is; every fault is a `BadArtifact` that names the tensor."""
    length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else 0
    if length > len(data) - 8:
        raise BadArtifact(f"the weights are no safetensors file: {len(data)} bytes, of which {length} are a header")
    try:
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadArtifact(f"the weights are no safetensors file: {error}") from None
    return {name: _region(name, entry, 8 + length, len(data)) for name, entry in entries.items()}


def _region(name: str, entry: _Entry, body: int, size: int) -> Region:
    dtype, (start, stop) = _OURS.get(entry.dtype), entry.data_offsets
    if dtype is None:
        raise BadArtifact(f"the weight {name} is of an unknown dtype {entry.dtype!r}")
    expected = math.prod(entry.shape) * ITEM_SIZE[dtype]
    if not 0 <= start <= stop <= size - body or stop - start != expected or min(entry.shape, default=0) < 0:
        raise BadArtifact(f"the weight {name}: bytes {start}:{stop} do not hold {dtype}{list(entry.shape)}")
    return Region(dtype, entry.shape, body + start, body + stop)
