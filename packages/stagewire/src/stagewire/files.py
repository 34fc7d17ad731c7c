"""Documents in files, in the format of the suffix: .json, .msgpack (also for any other suffix), .txt (printed form)."""

from __future__ import annotations

from pathlib import Path

from stagewire.codec import Document, kind_of, load, save
from stagewire.errors import DecodeError, ParseError, VerifyError
from stagewire.parser import parse_document
from stagewire.printer import print_document
from stagewire.verify import verify

TEXT = ".txt"


def read(path: str | Path, expect: str | None = None) -> Document:
    """A saved or printed document; faults name the file. `expect` refuses any other kind of document.

    It may break constraints: see `read_verified`. Raises `DecodeError`, `UnknownVersion`, `ParseError`, `OSError`.
    """
    path = Path(path)
    if path.suffix != TEXT:
        return load(path, expect)
    try:
        document = parse_document(path.read_text(encoding="utf-8"))
    except ParseError as error:
        raise ParseError(error.message, where=f"{path}:{error.where}") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"the text is no UTF-8: {error}", where=str(path)) from None
    if expect is not None and kind_of(document) != expect:
        raise DecodeError(f"expected a {expect} document, got a {kind_of(document)} document", where=str(path))
    return document


def read_verified(path: str | Path, expect: str | None = None) -> Document:
    """A document of which every constraint holds, as stages expect of what they are given; raises `VerifyError` too."""
    document = read(path, expect)
    try:
        verify(document)
    except VerifyError as error:
        where = str(path) if error.where is None else f"{path}, from {error.where}"
        raise VerifyError(error.label, error.fault, where=where) from None
    return document


def write(document: Document, path: str | Path) -> None:
    """Save in the format of the suffix."""
    path = Path(path)
    if path.suffix == TEXT:
        path.write_text(print_document(document), encoding="utf-8")
    else:
        save(document, path)
