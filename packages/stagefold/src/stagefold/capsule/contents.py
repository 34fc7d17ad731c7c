"""What a capsule holds, as text: its table of contents, documents by name, pairs of documents to compare."""

from __future__ import annotations

import functools
import re
import textwrap
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stagefold.artifact.file_format import document_in, is_artifact
from stagefold.backend import StagefoldBackend
from stagefold.bisector import first_difference, results_of
from stagefold.capsule.file_format import Capsule, Event, Run
from stagefold.capsule.inputs import inputs_of
from stagefold.capsule.replay import Replayed, loader_of, pipeline_of
from stagefold.capsule.settings import as_text
from stagefold.errors import BadCapsule, CommandFault
from stagefold.options import Options
from stagefold.pipeline import BOUNDARIES, StageLike, stopped_after
from stagefold.reference import meaning
from stagewire.codec import Document
from stagewire.files import read
from stagewire.passes import first_passes
from stagewire.printer import print_document

_GRAPHS = ("graph", "binding", "joint", "forward", "backward")


def is_capsule(path: Path) -> bool:
    """Whether a file is an archive, which no document is."""
    return path.is_file() and zipfile.is_zipfile(path)


def contents(capsule: Capsule) -> str:
    """One line of the machine, of each run and of each event, in the order of time."""
    index = capsule.index
    machine = index.machine
    lines = [
        f"{capsule.path.name}: stagefold {index.stagefold}, torch {machine.torch}, Python {machine.python}",
        f"  {machine.system}, {machine.threads} threads{''.join(f', {one}' for one in machine.devices)}",
        f"  {index.started}  {' '.join(index.command)}",
    ]
    rows: list[tuple[float, str]] = [(run.start, _run_line(capsule, run)) for run in capsule.runs]
    rows += [(event.start, line) for event in capsule.events for line in _event_lines(event)]
    return "\n".join([*lines, *(line for _, line in sorted(rows, key=lambda row: row[0]))])


def _run_line(capsule: Capsule, run: Run) -> str:
    seconds = sum(step.seconds for step in run.steps)
    own = [f"{row.slot}={row.name}" for row in run.stages if row.registered != row.slot]
    settings = [f"{key}={as_text(value)}" for key, value in run.options.items()]
    forms = " ".join(f"{form}:{digest[:8]}" for form, digest in run.digests.items())
    what = "".join(f"\n    {one}" for one in (*own, *settings, *([f"failed: {run.error}"] if run.error else ())))
    return f"{run.member}  {seconds:.2f} s  {len(run.inputs)} inputs{what}\n    {forms}"


def _event_lines(event: Event) -> Iterator[str]:
    if event.kind in ("captured", "reused"):
        if event.reason is not None:
            yield f"  {event.function} captured again: {event.reason}"
    else:
        word = {"broke": "graph break", "refused": "runs plain", "limit": "runs plain from now on"}[event.kind]
        yield f"  {word}: {event.code} at {event.where}\n    {event.message}\n    fix: {event.fix}"


def _parts(only: str) -> tuple[str, str, str]:
    """RUN, FORM and GRAPH, "" for those that are not named."""
    run = form = graph = ""
    for word in filter(None, only.split("/")):
        if word in _FORMS or word.partition(".")[0] in _FORMS:
            form = word
        elif word in BOUNDARIES:
            form = BOUNDARIES[word][1]
        elif word in _GRAPHS:
            graph = word
        elif run:
            raise CommandFault(f"{word!r} in --only {only!r} is no form and no graph", fix=f"Write {_HOW}.")
        else:
            run = word
    return run, form, graph


_FORMS = ("capture", *(form for _, form in BOUNDARIES.values()))
_HOW = "[RUN/]FORM[/GRAPH], such as prim, 0001/loop or f/loop/backward (or the slot that makes it: f/loopir/backward)"


def chosen_documents(capsule: Capsule, only: str) -> Iterator[tuple[Run, str, Document]]:
    """The documents that `--only` names, with run and form."""
    run, form, _ = _parts(only)
    found = False
    for one in capsule.chosen(run):
        for name in capsule.forms(one) if not form else [form] if form in one.digests else []:
            found = True
            yield one, name, capsule.document(one, name)
    if not found:
        raise BadCapsule(f"{capsule.path} has no {only!r}", fix=f"Write {_HOW}; `stagefold show FILE` lists the runs.")


def documents_of(path: Path, only: str) -> list[tuple[str, Document, str]]:
    """The documents of a file (it is one, or an artifact or a capsule) that `--only` names: with the run and the form
    of each, "" where the file has no runs, and the graph of it that is meant, "" for all."""
    if not is_capsule(path):
        return [("", read(path), only)]
    if is_artifact(path):
        return [("", document_in(path, only), "")]
    chosen = chosen_documents(Capsule(path), only)
    return [(f"{run.member}/{form}", document, _parts(only)[2]) for run, form, document in chosen]


def print_part(document: Document, graph: str) -> str:
    """The printed form of a document, or of one of its parts."""
    text = print_document(document)
    if not graph:
        return text
    found = printed_block(text, re.escape(graph), "  ")
    if found is None:
        known = re.findall(r"^  (\S+).*\{$", text, re.MULTILINE)
        raise CommandFault(f"the document has no part {graph!r}", fix=f"It has: {', '.join(known)}.")
    return f"{found}\n"


def printed_block(text: str, head: str, indent: str = " +") -> str | None:
    """The first block of a printed document whose head, a pattern, begins a line, without its indentation."""
    found = re.search(rf"^({indent}){head}\b[^\n]*\{{\n.*?^\1\}}", text, re.MULTILINE | re.DOTALL)
    return None if found is None else textwrap.dedent(found[0])


def paired_documents(left: Path, right: Path, only: str) -> Iterator[tuple[str, Document, Document]]:
    """Documents of two files with the same place: runs in order, forms by name."""
    for path in (left, right):
        if not path.exists():
            read(path)  # which says so
    if not is_capsule(left) or not is_capsule(right):
        yield f"{left} {right}", one_document(left, only), one_document(right, only)
        return
    run, form, _ = _parts(only)
    one, other = Capsule(left), Capsule(right)
    ours, theirs = list(one.chosen(run)), list(other.chosen(run))
    if len(ours) != len(theirs):
        told = " and ".join(f"{len(runs)} in {path}" for runs, path in ((ours, left), (theirs, right)))
        raise CommandFault(f"there are {told} programs", fix="Compare one of each: --only NUMBER.")
    for mine, its in zip(ours, theirs, strict=True):
        for name in mine.digests:
            if name in its.digests and form in ("", name):
                yield f"{mine.member}/{name}", one.document(mine, name), other.document(its, name)


def one_document(path: Path, only: str) -> Document:
    """A document file, or the one document of a capsule that `--only` names."""
    found = [document for _, document, _ in documents_of(path, only)]
    if len(found) != 1:
        which = f", of which {len(found)} are {only!r}" if only else ""
        raise CommandFault(f"{path} has several documents{which}", fix=f"Name one: --only {_HOW}.")
    return found[0]


def after_pass(
    capsule: Capsule, run: Run, wanted: str, options: Mapping[str, Any], stages: Mapping[str, StageLike]
) -> Document:
    """The document of the slot that runs a pass (PASS or PASS:N), made with no pass behind that."""
    pipeline, _ = pipeline_of(run, options, stages)
    document: Any = capsule.document(run, "capture")
    known: list[str] = []
    for slot, stage, chosen in pipeline.between(document):
        carried = functools.partial(stage.run, document, chosen)

        with first_passes(1 << 30) as passes:
            document = carried()
        names = [one.name for one in passes]
        if wanted.partition(":")[0] in names:
            return stopped_after(carried, wanted, f"slot {slot!r}")
        known += names
    raise CommandFault(f"no pass {wanted!r} runs", fix=f"These do: {', '.join(dict.fromkeys(known))}.")


def computed_difference(capsule: Capsule, made: Replayed, stages: Mapping[str, StageLike]) -> str | None:
    """How the results of a program differ from those of its capture, on the recorded inputs.

    It is loaded by what stood in slot "load", or by what `stages` have there.
    """
    inputs, loader = inputs_of(capsule, made.run), loader_of(made.run, stages)
    backend = StagefoldBackend(Options(), {} if loader is None else {"load": loader})
    expected = results_of(lambda: meaning(capsule.document(made.run, "capture")), inputs)
    return first_difference(results_of(lambda: backend.load(made.document), inputs), expected)
