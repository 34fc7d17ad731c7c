"""The container of capsules and artifacts: a zip archive whose index says what it is, in which format.

archive ::= index:json member*
"""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from stagewire.codec import Document, decode
from stagewire.errors import StageError

Member = TypeVar("Member", bound=msgspec.Struct)


class _Format(msgspec.Struct):
    format: int
    stagefold: str


class Archive:
    """The members of an archive, each read when it is asked for.

    index: the member that says what the archive is; its `format` must be `format`. fault: the class of errors, for a
    file that is no such archive, is of another format, lacks a member, or has one that does not decode.
    """

    def __init__(self, path: str | os.PathLike[str], index: str, format: int, fault: type[StageError]) -> None:
        self.path, self._fault = Path(path), fault
        what = index.partition(".")[0]
        try:
            with zipfile.ZipFile(self.path) as archive:
                self.names = tuple(archive.namelist())
        except (zipfile.BadZipFile, EOFError) as error:
            raise fault(f"{self.path} is no {what}: {error}") from None
        if index not in self.names:
            raise fault(f"{self.path} is no {what}: it has no member {index}")
        found = self.decode(index, _Format)
        if found.format != format:
            raise fault(
                f"{self.path} has format {found.format}; this stagefold reads {format}",
                fix=f"stagefold {found.stagefold} wrote it: read it with that version, or make it again.",
            )

    def read(self, name: str) -> bytes:
        """The bytes of a member."""
        if name not in self.names:
            raise self._fault(f"{self.path} has no member {name}")
        return self.members(name)[name]

    def members(self, *names: str) -> dict[str, bytes]:
        """The bytes of some members, by name; of all without names."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return {name: archive.read(name) for name in names or self.names}
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise self._fault(f"{self.path} cannot be read: {error}") from None

    def decode(self, name: str, kind: type[Member]) -> Member:
        """A member as data of a type."""
        try:
            return msgspec.json.decode(self.read(name), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._fault(f"{name} in {self.path} does not decode: {error}") from None

    def document(self, name: str) -> Document:
        """A member that is a document."""
        try:
            return decode(self.read(name))
        except StageError as error:
            raise type(error)(error.message, where=f"{name} in {self.path}") from None


def append_members(source: Path | None, members: Mapping[str, bytes], path: Path) -> None:
    """The archive `source` with more members takes the place of `path`; weights are not compressed. Raises `OSError`,
    and leaves nothing behind then."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if source is not None:
            shutil.copyfile(source, part)
        with zipfile.ZipFile(part, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, data in members.items():
                method = zipfile.ZIP_STORED if name.endswith(".safetensors") else zipfile.ZIP_DEFLATED
                archive.writestr(name, data, method)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
