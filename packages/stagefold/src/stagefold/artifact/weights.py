"""Tensors that a model holds, as the bytes of a safetensors file, and back.

A tensor that is contiguous and shares memory with no other is stored as it is. Others are windows on the memory that
they share, which is stored flat, once.

file ::= u64 header_length, JSON {name: {dtype, shape, data_offsets}}, bytes
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from msgspec.structs import replace

from absint import from_tensor, to_wire
from stagefold.artifact.file_format import Held
from stagefold.errors import BadArtifact, CannotExport
from stagewire.grad import Constant
from stagewire.types import ITEM_SIZE, extent


def described(names: Sequence[str], roles: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[Held, ...]:
    """How each tensor is stored. Tensors of other layouts, and ones that share memory with one of another dtype, are
    refused."""
    sharing: dict[int, list[int]] = {}
    for number, tensor in enumerate(tensors):
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not is_plain or tensor.is_conj() or tensor.is_neg() or tensor.device.type != "cpu":
            raise CannotExport(f"{names[number]} is no plain tensor on the CPU, but a {type(tensor).__name__}")
        sharing.setdefault(tensor.untyped_storage().data_ptr() if tensor.nbytes else -1 - number, []).append(number)
    rows: dict[int, Held] = {}
    for numbers in sharing.values():
        first = min(tensors[n].storage_offset() for n in numbers)
        if len({tensors[n].dtype for n in numbers}) > 1:
            shared = " and ".join(names[n] for n in numbers)
            raise CannotExport(f"{shared} share memory and differ in dtype")
        for n in numbers:
            alone = len(numbers) == 1 and tensors[n].is_contiguous()
            type_ = to_wire(from_tensor(tensors[n]), requires_grad=tensors[n].requires_grad)
            type_ = replace(type_, storage_offset=0 if alone else int(tensors[n].storage_offset() - first))
            rows[n] = Held(names[n], names[numbers[0]], roles[n], type_)  # type: ignore[arg-type]
    return tuple(rows[n] for n in range(len(tensors)))


def write_weights(held: Sequence[Held], tensors: Sequence[torch.Tensor]) -> bytes:
    """A safetensors file. Larger elements come first, so that each tensor lies at a multiple of its element."""
    spans: dict[str, int] = {}
    for row in held:
        spans[row.entry] = max(spans.get(row.entry, 0), _reach(row))
    sharers = Counter(row.entry for row in held)
    found: dict[str, Constant] = {}
    for row, tensor in zip(held, tensors, strict=True):
        if row.entry not in found:
            shape = tuple(tensor.shape) if sharers[row.entry] == 1 and tensor.is_contiguous() else (spans[row.entry],)
            size = spans[row.entry] * tensor.element_size()
            start: Any = tensor.data_ptr() - row.type.storage_offset * tensor.element_size()
            found[row.entry] = Constant(row.type.dtype, shape, ctypes.string_at(start, size) if size else b"")
    return encode_tensors(dict(sorted(found.items(), key=lambda item: -ITEM_SIZE[item[1].dtype])))


def _reach(row: Held) -> int:
    """Elements from the start of what is stored to the last of a tensor."""
    return row.type.storage_offset + extent(row.type)  # type: ignore[operator, return-value]


def read_weights(held: Sequence[Held], data: bytes, gradients: bool) -> tuple[torch.Tensor, ...]:
    """The tensors, of one memory; parameters are leaves, which require gradients as they did if there are any."""
    memory = bytearray(data)
    found: dict[str, torch.Tensor] = {}
    for name, region in locate_tensors(memory).items():
        dtype, count = getattr(torch, region.dtype), region.stop - region.start
        found[name] = torch.empty(0, dtype=dtype)
        if count:
            flat = torch.frombuffer(memory, dtype=torch.uint8, count=count, offset=region.start)
            found[name] = (flat if flat.data_ptr() % dtype.itemsize == 0 else flat.clone()).view(dtype)
    return tuple([_window(row, found, gradients) for row in held])


def _window(row: Held, stored: Mapping[str, torch.Tensor], gradients: bool) -> torch.Tensor:
    flat, type_ = stored.get(row.entry), row.type
    if flat is None or str(flat.dtype) != f"torch.{type_.dtype}":
        raise BadArtifact(f"the weights have no tensor {row.entry!r} of dtype {type_.dtype}")
    numbers = (*type_.shape, *type_.stride, type_.storage_offset)
    if not all(isinstance(one, int) and one >= 0 for one in numbers) or _reach(row) > flat.numel():
        raise BadArtifact(f"{row.name} is {type_}, and {row.entry!r} has {flat.numel()} elements")
    start: Any = flat.storage_offset() + type_.storage_offset
    shape: Any = type_.shape
    stride: Any = type_.stride
    tensor = torch.empty(0, dtype=flat.dtype).set_(flat.untyped_storage(), start, shape, stride)
    wants = gradients and type_.requires_grad
    return torch.nn.Parameter(tensor, wants) if row.role == "parameter" else tensor.requires_grad_(wants)


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
