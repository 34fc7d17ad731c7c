"""Run whatever eager may refuse, eager as the oracle, and write docs/refusals.md.

    nox -s refusals
    nox -s refusals -- add gather --misfits 100

The error inputs of torch's operator database, and misfits drawn around its samples (`cases`), in each way of `judge`,
each operator in a process of its own. Rows are kept in `--results`; an operator that is done is not run again, unless
it is named. The exit code is 1 where a fault is found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.opinfo.samples import database
from tools.refusals.judge import FAULTS
from tools.refusals.pool import Pool
from tools.refusals.report import report, summary

ROOT = Path(__file__).resolve().parents[2]


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of operators that are done."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {row["op"] for row in rows if "done" in row}
    return [row for row in rows if row["op"] in done]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def chosen(infos: dict[str, Any], names: list[str], shard: str) -> list[Any]:
    """The operators of these names (with or without their variant), all without any; then every N-th of them."""
    named = [info for key, info in infos.items() if not names or key in names or info.name in names]
    if not named:
        raise SystemExit(f"no operator is named {' '.join(names)}")
    index, count = map(int, shard.split("/"))
    return named[index::count]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nox -s refusals --", description=__doc__)
    parser.add_argument("ops", nargs="*", help="operators, by name (with or without their variant)")
    parser.add_argument("--misfits", type=int, default=24, help="at most so many for each operator")
    parser.add_argument("--shard", default="0/1", help="K/N: every N-th operator, from the K-th on")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--results", type=Path, default=ROOT / ".refusals" / "results.jsonl")
    parser.add_argument("--report", type=Path, default=ROOT / "docs" / "refusals.md")
    given = parser.parse_args(arguments)
    every = database()
    infos = chosen(every, given.ops, given.shard)
    again = {info.formatted_name for info in infos} if given.ops else set()
    rows = [row for row in read(given.results) if row["op"] not in again]
    write(given.results, rows)
    done, new = {row["op"] for row in rows}, []
    with tempfile.TemporaryDirectory(prefix="refusals") as cache, given.results.open("a") as file:
        os.environ["STAGEFOLD_CACHE_DIR"] = cache  # a process that goes on behind a fault finds its programs there
        for row in Pool([info for info in infos if info.formatted_name not in done], given.misfits, given.jobs).rows():
            new.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            if row.get("status") in FAULTS or "broken" in row:
                print(summary(row), flush=True)
    everything = [*rows, *new]
    shown = [row for row in everything if row["op"] in again] if again else everything
    print(report(shown).split("\n## ")[0])
    if not again:
        given.report.write_text(report(everything, len(every)))
    return int(any(row.get("status") in FAULTS or "broken" in row for row in shown))


if __name__ == "__main__":
    sys.exit(main())
