"""Look at documents from a shell.

    python -m stagewire schema [KIND...]      the JSON Schema of documents
    python -m stagewire show FILE             the printed form
    python -m stagewire verify FILE           every broken constraint, with the lines around it
    python -m stagewire digest FILE           the content hash
    python -m stagewire convert FILE OUT      .json, .msgpack, or .txt (the printed form), either way
    python -m stagewire ops [NAMESPACE]       the namespaces of installed ops; those of one, with --json as data

Exit codes: 0 done, 1 a coded error or a broken constraint (printed), 2 a wrong command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stagewire.codec import KINDS, Document, kind_of
from stagewire.command import guarded
from stagewire.digest import digest
from stagewire.files import TEXT, read, write
from stagewire.printer import print_document
from stagewire.schema import json_schema
from stagewire.verify import faults, told, window
from stagewire.vocabulary import namespaces, vocabulary
from stagewire.vocabulary_pages import as_json, page


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    return guarded(lambda: _run(chosen))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stagewire", description="Look at the documents between stages.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    schema = commands.add_parser("schema", help="print the JSON Schema of documents")
    schema.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    ops = commands.add_parser("ops", help="list the installed vocabularies, or print one")
    ops.add_argument("namespace", nargs="?", choices=sorted(namespaces()))
    ops.add_argument("--json", action="store_true")
    for name, what in (
        ("show", "print a document"),
        ("verify", "print every broken constraint"),
        ("digest", "print the content hash"),
        ("convert", "write a document in the format of the second suffix"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("file", type=Path)
        if name == "convert":
            command.add_argument("output", type=Path, help=f".json, .msgpack or {TEXT}")
    return parser


def _run(chosen: argparse.Namespace) -> int:
    match chosen.command:
        case "schema":
            print(msgspec.json.format(msgspec.json.encode(json_schema(*chosen.kinds)), indent=2).decode())
        case "ops":
            _show_ops(chosen.namespace, chosen.json)
        case "show":
            print(print_document(read(chosen.file)), end="")
        case "verify":
            return _verify(read(chosen.file), chosen.file)
        case "digest":
            print(digest(read(chosen.file)))
        case _:
            write(read(chosen.file), chosen.output)
    return 0


def _show_ops(namespace: str | None, as_data: bool) -> None:
    if namespace is None:
        for name, point in namespaces().items():
            print(f"{name} ({point.value})")
        return
    known = vocabulary(namespace)
    assert known is not None, "the command line takes installed namespaces"
    print(as_json(known).decode() if as_data else page(known), end="")


def _verify(document: Document, path: Path) -> int:
    found = list(faults(document))
    for fault in found:
        print(f"[{fault.label}] {told(fault)}\n{window(document, fault.path)}\n")
    print(f"{path}: {kind_of(document)}, {len(found)} broken constraints")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
