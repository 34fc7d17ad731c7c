"""Constants: tensors that travel beside a document, in safetensors layout.

file ::= u64 header_length, JSON {name: {dtype, shape, data_offsets}}, bytes
"""

from __future__ import annotations

import struct

import msgspec

from stagewire.errors import DecodeError
from stagewire.types import ITEM_SIZE, DType, numel

_SAFETENSORS_DTYPE = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex128": "C128",
}  # fmt: skip
_OUR_DTYPE = {theirs: ours for ours, theirs in _SAFETENSORS_DTYPE.items()}


class Constant(msgspec.Struct, frozen=True):
    """The bytes of one contiguous tensor, little-endian, row-major."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def encode_constants(constants: dict[str, Constant]) -> bytes:
    """Write constants in safetensors layout."""
    header: dict[str, _Entry] = {}
    position = 0
    for name, constant in constants.items():
        if constant.dtype not in _SAFETENSORS_DTYPE:
            raise DecodeError(f"constant {name!r}: safetensors has no dtype {constant.dtype}")
        end = position + len(constant.data)
        header[name] = _Entry(_SAFETENSORS_DTYPE[constant.dtype], constant.shape, (position, end))
        position = end
    head = msgspec.json.encode(header)
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(c.data for c in constants.values())


def decode_constants(data: bytes) -> dict[str, Constant]:
    """Read constants; every fault is a `DecodeError` that names the tensor."""
    if len(data) < 8:
        raise DecodeError(f"constants: {len(data)} bytes are too few for a header")
    (length,) = struct.unpack_from("<Q", data)
    if length > len(data) - 8:
        raise DecodeError(f"constants: the header claims {length} bytes of {len(data) - 8}")
    try:
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, _Entry])
    except msgspec.MsgspecError as error:
        raise DecodeError(f"constants: {error}") from None
    body = memoryview(data)[8 + length :]
    return {name: _constant(name, entry, body) for name, entry in header.items()}


def _constant(name: str, entry: _Entry, body: memoryview) -> Constant:
    if entry.dtype not in _OUR_DTYPE:
        raise DecodeError(f"constants.{name}: unknown dtype {entry.dtype!r}")
    dtype = _OUR_DTYPE[entry.dtype]
    start, end = entry.data_offsets
    expected = numel(entry.shape) * ITEM_SIZE[dtype]
    if not (0 <= start <= end <= len(body)) or end - start != expected:
        raise DecodeError(f"constants.{name}: bytes {start}:{end} do not hold {dtype}{list(entry.shape)}")
    return Constant(dtype, entry.shape, bytes(body[start:end]))  # type: ignore[arg-type]
