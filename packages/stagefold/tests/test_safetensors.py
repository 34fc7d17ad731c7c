"""Weights in safetensors layout."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from stagefold.artifact.weights import Region, encode_tensors, locate_tensors
from stagefold.errors import BadArtifact, CannotExport
from stagewire.grad import Constant

ONE = {"w": Constant("float32", (2, 3), bytes(range(24))), "empty": Constant("int64", (0,), b"")}


def test_the_layout() -> None:
    data = encode_tensors(ONE)
    (length,) = struct.unpack_from("<Q", data)
    assert length % 8 == 0
    header = msgspec.json.decode(data[8 : 8 + length])
    assert header["w"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert data[8 + length :] == bytes(range(24))
    start = 8 + length
    assert locate_tensors(data) == {
        "w": Region("float32", (2, 3), start, start + 24),
        "empty": Region("int64", (0,), start + 24, start + 24),
    }


def written(**header: Any) -> bytes:
    head = msgspec.json.encode(header)
    return struct.pack("<Q", len(head)) + head + bytes(24)


def test_what_other_writers_say_of_themselves_is_no_tensor() -> None:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert list(locate_tensors(written(__metadata__={"format": "pt"}, w=entry))) == ["w"]


@pytest.mark.parametrize("length", [0, 7, 8, 20, -1])
def test_files_that_are_cut_are_refused(length: int) -> None:
    with pytest.raises(BadArtifact, match=r"safetensors file|do not hold"):
        locate_tensors(encode_tensors(ONE)[:length])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "F99"}, "unknown dtype 'F99'"),
        ({"shape": [2, 4]}, r"bytes 0:24 do not hold float32\[2, 4\]"),
        ({"shape": [-2, -3]}, "do not hold"),
        ({"data_offsets": [0, 400]}, "bytes 0:400"),
        ({"data_offsets": [-24, 0]}, "bytes -24:0"),
        ({"data_offsets": [0]}, "no safetensors file"),
        ({"shape": "many"}, "no safetensors file"),
    ],
)
def test_headers_that_lie_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadArtifact, match=says):
        locate_tensors(written(w={"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | change))


def test_a_dtype_without_a_name_is_refused() -> None:
    with pytest.raises(CannotExport, match="w is of complex32"):
        encode_tensors({"w": Constant("complex32", (1,), bytes(4))})
