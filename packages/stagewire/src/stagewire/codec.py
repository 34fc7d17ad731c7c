"""Documents as bytes: JSON for people and diffs, MessagePack for speed.

    wire ::= {document, version, producer, body}

Versions are integers, one per kind of document; `UPGRADES[kind][version]` turns the plain data of that version into
that of the next. Decoding never runs code: typed data in, typed data out, every fault a `DecodeError` with a path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from stagewire.capture import Capture
from stagewire.errors import DecodeError, UnknownVersion
from stagewire.grad import Grad
from stagewire.loop import Loop
from stagewire.prim import Prim
from stagewire.program import Program
from stagewire.upgrades import join_directions, state_effects, state_views

Document = Capture | Grad | Prim | Loop | Program
"""Any of the five kinds of document."""
Format = Literal["json", "msgpack"]

KINDS: dict[str, type[Document]] = {"capture": Capture, "grad": Grad, "prim": Prim, "loop": Loop, "program": Program}
VERSIONS: dict[str, int] = {"capture": 1, "grad": 3, "prim": 3, "loop": 2, "program": 1}

Upgrade = Callable[[Any], Any]
UPGRADES: dict[str, dict[int, Upgrade]] = {
    "capture": {},
    "grad": {1: state_effects, 2: join_directions},
    "prim": {1: state_effects, 2: state_views},  # each was cut
    "loop": {1: state_effects},
    "program": {},
}


class _Wire(msgspec.Struct):
    document: str
    version: int
    producer: str
    body: msgspec.Raw


def kind_of(document: Document) -> str:
    """ "capture", "grad", "prim", "loop" or "program"."""
    return type(document).__name__.lower()


def form_of(document: Document) -> str:
    """Where the document stands between the stages: its kind, or "cut" for a `Prim` behind the partition."""
    return "cut" if isinstance(document, Prim) and document.forward is not None else kind_of(document)


def encode(document: Document, format: Format = "json", producer: str = "stagefold") -> bytes:
    """The document with its header."""
    module = msgspec.json if format == "json" else msgspec.msgpack
    body = msgspec.Raw(module.encode(document))
    kind = kind_of(document)
    data: bytes = module.encode(_Wire(kind, VERSIONS[kind], producer, body))
    return data


def decode(data: bytes, expect: str | None = None) -> Document:
    """Read either format; `expect` refuses any other kind of document."""
    is_json = data[:1] == b"{"
    module = msgspec.json if is_json else msgspec.msgpack
    try:
        wire = module.decode(data, type=_Wire)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"the header does not decode: {error}") from None
    if wire.document not in KINDS:
        raise UnknownVersion(f"unknown document kind {wire.document!r}; known: {', '.join(KINDS)}")
    if expect is not None and wire.document != expect:
        raise DecodeError(f"expected a {expect} document, got a {wire.document} document")
    return _decode_body(wire, module)


def _decode_body(wire: _Wire, module: Any) -> Document:
    current = VERSIONS[wire.document]
    kind = KINDS[wire.document]
    upgrades = UPGRADES[wire.document]
    try:
        if wire.version == current:
            return cast(Document, module.decode(wire.body, type=kind))
        if wire.version > current or any(v not in upgrades for v in range(wire.version, current)):
            raise UnknownVersion(
                f"{wire.document} version {wire.version} cannot be read: this stagewire reads up to "
                f"{current}" + (f" (upgraders from {sorted(upgrades)})" if upgrades else "")
            )
        data = module.decode(wire.body)
        for version in range(wire.version, current):
            data = upgrades[version](data)
        return msgspec.convert(data, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"{wire.document} does not decode: {error}") from None


def save(document: Document, path: str | Path) -> None:
    """Write atomically; the suffix chooses the format (.json, or .msgpack for anything else)."""
    path = Path(path)
    data = encode(document, "json" if path.suffix == ".json" else "msgpack")
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def load(path: str | Path, expect: str | None = None) -> Document:
    """Read a document from a file; faults name the file."""
    try:
        return decode(Path(path).read_bytes(), expect)
    except (DecodeError, UnknownVersion) as error:
        raise type(error)(error.message, where=str(path)) from None
