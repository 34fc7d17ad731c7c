"""Refuse names that docs/glossary.md has retired.

    python tools/retired_words.py

Reads the last table of the page: a word of its first column may name neither a module or folder of packages/*/src, nor,
where it is of several words (by_sizes), a function or class of a module.
Exit code 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"


def retired(page: str) -> dict[str, str]:
    """The words of the table, with what is said instead.

    >>> retired("## Retired words\\n\\n| not | but |\\n|---|---|\\n| near, far | close, distant |")
    {'near': 'close, distant', 'far': 'close, distant'}
    """
    table = page.partition("## Retired words\n")[2]
    rows = re.findall(r"^\| ([\w, ]+) \| (.+) \|$", table, re.MULTILINE)[1:]
    return {word: instead for words, instead in rows for word in words.split(", ")}


def named(directory: Path) -> Iterator[tuple[str, str]]:
    """(place, name) of each module, folder, and function or class of a module below a directory."""
    for file in sorted(directory.rglob("*.py")):
        place = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        yield str(place), file.parent.name if file.stem == "__init__" else file.stem
        for node in ast.parse(file.read_text(), str(file)).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield f"{place}:{node.lineno}", node.name


def faults(directory: Path, words: Mapping[str, str]) -> list[str]:
    """A sentence for each name below a directory that is one of the words."""
    found = ((place, name.lower()) for place, name in named(directory))
    counts = ((place, name) for place, name in found if name in words and ("_" in name or ":" not in place))
    return [f"{place}: {name} is retired, for {words[name]}" for place, name in counts]


def main() -> int:
    words = retired(GLOSSARY.read_text())
    bad = [fault for path in sorted((ROOT / "packages").glob("*/src")) for fault in faults(path, words)]
    for fault in bad:
        print(fault, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
