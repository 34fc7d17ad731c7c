"""Rows as docs/refusals.md: totals, and the list of whatever is a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from tools.refusals.judge import FAULTS, STATUSES, WAYS

Row = dict[str, Any]


def report(rows: Iterable[Row], operators: int | None = None) -> str:
    """The text of the page; the row of an operator that is done says how many misfits it has at most.

    operators: how many there are; more than those that are done are still to be run.
    """
    every = list(rows)
    judged = [row for row in every if "status" in row]
    misfits = {row["op"]: row["done"] for row in every if "done" in row}
    most = " or ".join(map(str, sorted(set(misfits.values()))))
    lines = [
        "# What eager refuses",
        "",
        "Written by `nox -s refusals`: the error inputs of every OpInfo of `torch.testing`, and misfits drawn around",
        "its samples (an operand one longer or shorter, of another rank or dtype, empty, an index or a dimension out",
        "of range), forward and backward, against eager on the CPU: an error is of eager's class or of a subclass.",
        f"Made with torch {torch.__version__.partition('+')[0]}, of {_of(len(misfits), operators)},",
        f"at most {most} misfits each.",
        "",
        "* *same*: both raise. *silent*: eager raises, compiled code computes. *other*: another class, or not",
        "  in the same of forward and backward. *crashed*: the process ended. *refused*: only ours raises.",
        "* *computed*: both compute (a tenth of the misfits that eager computes is compiled).",
        "* *fixed*: compiled for the sizes of the call. *symbolic*: with `dynamic=True`, after a call that fits.",
        "",
        "| cases | sizes | " + " | ".join(STATUSES) + " |",
        "|---|---|" + "---|" * len(STATUSES),
    ]
    for kind in ("error input", "misfit"):
        for way in WAYS:
            counts = Counter(row["status"] for row in judged if row["kind"] == kind and row["way"] == way)
            lines.append(f"| {kind}s | {way} | " + " | ".join(str(counts[status]) for status in STATUSES) + " |")
    lines += ["", "## Faults", "", *_faults(judged)]
    lines += [f"* {row['op']}: {row['broken']}" for row in every if "broken" in row]
    if left_out := [(row["op"], row["what"], row["left out"]) for row in every if "left out" in row]:
        lines += [
            "", "## Left out", "",
            "Eager itself does not survive these calls, takes more than a minute, or reads memory that nobody has",
            "written. A call that damages memory may end the process only when it is repeated.",
            "", "| operator | case | why |", "|---|---|---|", *map(_table_row, sorted(left_out)),
        ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _of(done: int, operators: int | None) -> str:
    if operators is None or done == operators:
        return f"{done} operators"
    return f"{done} of {operators} operators (the others are still to be run)"


def _faults(judged: list[Row]) -> list[str]:
    found: dict[tuple[str, ...], list[str]] = {}
    for row in judged:
        if row["status"] in FAULTS:
            key = (row["op"], row["what"], row["status"], row["eager"], row["ours"])
            found.setdefault(key, []).append(row["way"])
    if not found:
        return ["None."]
    lines = ["| operator | case | sizes | status | eager | compiled |", "|---|---|---|---|---|---|"]
    for (op, what, status, eager, ours), ways in sorted(found.items()):
        cells = (op, what, ", ".join(ways), status, eager, ours)
        lines.append(_table_row(cells))
    return lines


def _table_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def summary(row: Row) -> str:
    """A fault on one line."""
    if "broken" in row:
        return f"{row['op']}: {row['broken']}"
    return f"{row['status']} {row['op']} [{row['way']}] {row['what']}: {row['eager']} -> {row['ours']}"
