"""What two documents differ in: by structure, not by numbering.

Lines of the printed form are paired by all but the names of values, buffers, axes and kernels, and without what is left
out of digests (the user's lines, origins, decisions). Down the pairs, each line that defines a name says which name of
the one document is which of the other; a pair whose names do not fit that is a difference, too, and everything that
only has other numbers is none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stagewire.capture import Capture
from stagewire.codec import Document
from stagewire.grad import Grad
from stagewire.loop import Loop
from stagewire.prim import PartitionReport, Prim
from stagewire.printer import print_document

_TYPES = r"(?![iufb](?:8|16|32|64)\b|bf16\b|c64\b|c128\b)"
_NAME = re.compile(rf'%[\w.]+|"[A-Za-z_]\w*"|(?<=kernel )\w+|(?<=launch )\w+|\b{_TYPES}[ir]\d+\b')
_IN_SOURCE = re.compile(rf"\b{_TYPES}[a-z]+_?[a-z]*\d+(?:_\w+)?\b")
_COMMENT = re.compile(r'(?: with origins=\([^)]*\))?(?:\s+# [^"]*)?$')
_DEFINES = re.compile(r"(?P<left>(?:%[\w.]+: [^=]*?)+) = |input (?P<input>%\S+):|.*\bname=(?P<name>\"\w+\")")
_DECLARES = re.compile(r"\|.*\b(?:const )?(?:[iuf]\d+|bool|void) (?:\*__restrict )?(\w+)(?: = |\()")
_AXES = re.compile(r"(?<=for )\w+|(?<=kernel )\w+|(?<=, )\w+(?= in )")


def differences(left: Document, right: Document, *, context: int = 3) -> list[str]:
    """Lines of both, "- " of `left` and "+ " of `right`, with some around them; none where they are the same.

    >>> from stagewire.parser import parse_document
    >>> text = '''prim 3 {
    ...   binding { inputs { } outputs { Fresh(result=0) } }
    ...   forward { %a: f32[2] = prims.full([2], 1.0, "float32")  %b: f32[2] = prims.neg(%a)  return %b }
    ... }'''
    >>> differences(parse_document(text), parse_document(text.replace("%a", "%c")))
    []
    >>> differences(parse_document(text), parse_document(text.replace("neg", "exp")), context=0)[1:]
    ['-     %b: f32[2] = prims.neg(%a)', '+     %b: f32[2] = prims.exp(%a)']
    """
    before, after = _lines(left), _lines(right)
    names: dict[str, str] = {}
    marked: list[tuple[str, str]] = []
    for here, there in _paired(before, after):
        if here is None or there is None:
            marked.append(("-", here) if here is not None else ("+", there or ""))
            continue
        names.update(_defined(here, there))
        fits = _renamed(here, names) == there
        marked += [(" ", there)] if fits else [("-", here), ("+", there)]
    return list(_windows(marked, context))


def _lines(document: Document) -> list[str]:
    return [_COMMENT.sub("", line) for line in print_document(_bare(document)).splitlines()]


def _bare(document: Document) -> Document:
    """Without what says how it came about."""
    match document:
        case Capture():
            return replace(document, code=replace(document.code, file="", first_line=0))
        case Grad():
            return replace(document, rewrites=())
        case Prim():
            return replace(document, partition=PartitionReport())
        case Loop():
            graphs = {
                name: None if graph is None else replace(graph, decisions=())
                for name, graph in (("forward", document.forward), ("backward", document.backward))
            }
            return replace(document, **graphs)
    return document


def _names_of(line: str) -> re.Pattern[str]:
    return _IN_SOURCE if line.lstrip().startswith("|") else _NAME


def _paired(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """Lines of both, in order; None where a line is in one alone."""
    skeletons = ([_names_of(line).sub("%", line) for line in lines] for lines in (before, after))
    matcher = difflib.SequenceMatcher(None, *skeletons, autojunk=False)
    for tag, i, k, j, m in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(before[i:k], after[j:m], strict=True)
        else:
            yield from ((line, None) for line in before[i:k])
            yield from ((None, line) for line in after[j:m])


def _defined(here: str, there: str) -> Iterator[tuple[str, str]]:
    """The names that a line defines, with those of the line that it is paired with."""
    own, other = ([*_definitions(line.strip())] for line in (here, there))
    return zip(own, other, strict=False)


def _definitions(line: str) -> Iterator[str]:
    if line.startswith("|"):
        yield from _DECLARES.findall(line)
    elif line.startswith(("kernel", "section")):
        yield from _AXES.findall(line)
    elif found := _DEFINES.match(line):
        names = next(one for one in found.groups() if one is not None)
        yield from (name.strip('%"') for name in _NAME.findall(names))


def _renamed(line: str, names: dict[str, str]) -> str:
    def other(found: re.Match[str]) -> str:
        bare = found[0].strip('%"')
        return found[0].replace(bare, names.get(bare, bare))

    return _names_of(line).sub(other, line)


def _windows(marked: list[tuple[str, str]], context: int) -> Iterator[str]:
    changed = [number for number, (mark, _) in enumerate(marked) if mark != " "]
    shown = {near for number in changed for near in range(number - context, number + context + 1)}
    last = -1
    for number in sorted(one for one in shown if 0 <= one < len(marked)):
        if number != last + 1:
            yield f"@@ line {number + 1}"
        yield "{} {}".format(*marked[number])
        last = number
