"""Constants in safetensors layout."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.errors import DecodeError
from stagewire.tensors import Constant, decode_constants, encode_constants
from stagewire.testing.bindings import constants

ONE = {"w": Constant("float32", (2, 3), bytes(range(24))), "empty": Constant("int64", (0,), b"")}


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), constants(), max_size=4))
def test_constants_survive(found: dict[str, Constant]) -> None:
    assert decode_constants(encode_constants(found)) == found


def test_the_layout_is_safetensors() -> None:
    data = encode_constants(ONE)
    (length,) = struct.unpack_from("<Q", data)
    assert length % 8 == 0
    header = msgspec.json.decode(data[8 : 8 + length])
    assert header["w"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert data[8 + length :] == bytes(range(24))


@pytest.mark.parametrize("length", [0, 7, 8, 20, -1])
def test_truncated_files_are_refused(length: int) -> None:
    with pytest.raises(DecodeError, match="constants"):
        decode_constants(encode_constants(ONE)[:length])


def rewritten(**change: object) -> bytes:
    header = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | change}
    head = msgspec.json.encode(header)
    return struct.pack("<Q", len(head)) + head + bytes(24)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "F99"}, r"constants\.w: unknown dtype 'F99'"),
        ({"shape": [2, 4]}, r"constants\.w: bytes 0:24 do not hold float32\[2, 4\]"),
        ({"data_offsets": [0, 400]}, r"constants\.w: bytes 0:400"),
        ({"data_offsets": [-24, 0]}, r"constants\.w: bytes -24:0"),
        ({"data_offsets": [0]}, "constants"),
        ({"shape": "many"}, "constants"),
    ],
)
def test_headers_that_lie_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(DecodeError, match=says):
        decode_constants(rewritten(**change))


def test_dtypes_that_safetensors_lacks_are_refused() -> None:
    with pytest.raises(DecodeError, match="'c': safetensors has no dtype complex32"):
        encode_constants({"c": Constant("complex32", (1,), bytes(4))})
