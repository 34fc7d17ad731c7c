"""The members of an artifact, and what `stagefold show` prints of them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from typing import Literal

import msgspec

from codegen.portable import Requirement
from stagefold.archive import Archive
from stagefold.artifact.trees import Tree
from stagefold.errors import BadArtifact
from stagewire.capture import Relation
from stagewire.codec import Document
from stagewire.graph import Arg
from stagewire.types import TensorType

FORMAT = 2
INDEX, MAIN, PREPARE, CAPTURE = "artifact.json", "main.program", "prepare.program", "capture.json"
WEIGHTS = "weights.safetensors"


class Leaf(msgspec.Struct, frozen=True):
    """One leaf of the arguments: a tensor of this type, or a Python value that must be given again.

    label: how errors name it, such as `args[0]` or `kwargs['mask']`.
    """

    label: str
    type: TensorType | None = None
    value: Arg = None


class Held(msgspec.Struct, frozen=True):
    """A tensor that the model holds: a strided window (offset in elements) on the stored tensor `entry`."""

    name: str
    entry: str
    role: Literal["parameter", "buffer", "constant"]
    type: TensorType


class Result(msgspec.Struct, frozen=True):
    """One leaf of the result: an output of the program, or the number in it; a leaf of the arguments, or a held tensor,
    itself; a Python value."""

    kind: Literal["output", "number", "leaf", "held", "value"]
    index: int = 0
    value: Arg = None


class Range(msgspec.Struct, frozen=True):
    """A size symbol: how errors name it, and its bounds, both inclusive (None: unbounded)."""

    symbol: str
    label: str
    lower: int | None = None
    upper: int | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What an artifact is.

    torch: the release that its programs are for. kernels: what ATen's kernels must be able to do
    (`absint.cpu_kernels`), "" where the programs ask nothing of it. options: "numerics", "rng" and "freeze" as it was
    compiled with.
    inputs: of the program, each the number of a leaf,
    or -1-n for held tensor n.
    rules: what must be true of the sizes. checks: numbers of outputs that are true where the program is right for the
    data. gradients: whether results have a history. codes: the machine code that is inside.
    """

    format: int
    stagefold: str
    name: str
    torch: str
    kernels: str
    options: dict[str, str | bool]
    arguments: Tree
    leaves: tuple[Leaf, ...]
    results: Tree
    outputs: tuple[Result, ...]
    inputs: tuple[int, ...]
    held: tuple[Held, ...]
    ranges: tuple[Range, ...]
    rules: tuple[Relation, ...]
    checks: tuple[int, ...]
    gradients: bool
    codes: tuple[Requirement, ...]


def library_member(isa: str, source: str) -> str:
    """The shared library of a source (by digest) for an instruction set."""
    return f"code/{isa}/{source}.so"


def contents(path: str | os.PathLike[str]) -> str:
    """What an artifact holds, line by line."""
    archive = Archive(path, INDEX, FORMAT, BadArtifact)
    return "\n".join(_lines(archive, archive.decode(INDEX, Header)))


def is_artifact(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an archive with the index of an artifact."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return INDEX in archive.namelist()


def document_in(path: str | os.PathLike[str], name: str) -> Document:
    """A document of an artifact: "capture", "main" or "prepare"."""
    archive = Archive(path, INDEX, FORMAT, BadArtifact)
    known = {member.partition(".")[0]: member for member in (CAPTURE, MAIN, PREPARE) if member in archive.names}
    if name not in known:
        raise BadArtifact(f"{archive.path} has no document {name!r}", fix=f"It has: {', '.join(known)}.")
    return archive.document(known[name])


def _lines(archive: Archive, header: Header) -> Iterator[str]:
    kind = "forward and backward" if header.gradients else "forward"
    yield f"{archive.path.name}: {header.name}, {kind}, by stagefold {header.stagefold} for torch {header.torch}"
    for leaf in header.leaves:
        yield f"  {leaf.label}: {repr(leaf.value) if leaf.type is None else leaf.type}"
    for one in header.ranges:
        yield f"  {one.symbol} = {one.label}, {bounds_text(one)}"
    for rule in header.rules:
        yield f"  {rule.left} {rule.operator} {rule.right}{'' if rule.line is None else f'  # {rule.line}'}"
    where = "inside" if WEIGHTS in archive.names else "beside"
    yield f"  {len(header.held)} tensors {where}"
    for code in header.codes:
        size = sum(len(archive.read(name)) for name in archive.names if name.startswith(f"code/{code.isa}/"))
        yield f"  machine code for {code.isa}, {' '.join(code.c_library)} or newer: {size / 1e3:.0f} kB"
    documents = [name for name in (CAPTURE, MAIN, PREPARE) if name in archive.names]
    yield f"  documents: {', '.join(documents)}"


def bounds_text(one: Range) -> str:
    """The bounds of a size, in words."""
    return f"{0 if one.lower is None else one.lower} to {'any size' if one.upper is None else one.upper}"
