"""Results as text: a line for the terminal, the tables of docs/coverage.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import torch

Row = dict[str, Any]
WAYS = {
    "decomposition": "decomposition against ATen",
    "interpreted": "documents interpreted",
    "compiled": "compiled on CPU",
    "symbolic": "compiled on CPU for symbolic sizes",
}
RANK = {"none": -1, "passed": 0, "refused": 1, "failed": 2}


def worst_status(row: Row) -> str:
    """The worst status among the ways of a result; "none" where eager has no sample that runs."""
    found = [row[way]["status"] for way in WAYS if way in row]
    return "failed" if "broken" in row else max(found, key=RANK.__getitem__, default="none")


def summary(row: Row) -> str:
    """One result on some lines: what is not passed, and why."""
    bad = [f"\n    {way}: {row[way]['status']}: {row[way]['detail']}" for way in WAYS
           if way in row and row[way]["status"] != "passed"]  # fmt: skip
    return f"{row['op']} {row['dtype']}{''.join(bad)}{row.get('broken', '')}"


def report(rows: Iterable[Row]) -> str:
    """The text of docs/coverage.md."""
    ran = [row for row in rows if worst_status(row) != "none"]
    lines = [
        "# Coverage of torch's operator database",
        "",
        "Written by `nox -s opinfo`: every OpInfo of `torch.testing`, some samples of each, forward and (where torch",
        "has one) gradient, against eager: values, dtype, shape, strides. A case is one operator in one dtype.",
        f"Made with torch {torch.__version__.partition('+')[0]}.",
        "",
        "* *decomposition against ATen*: each ATen call that eager makes is computed by its decomposition too.",
        "* *documents interpreted*: captured, differentiated, decomposed, lowered; the Loop document interpreted.",
        "* *compiled on CPU*: `stagefold.compile(fullgraph=True)`.",
        "",
        "*passed*: all of it is decomposed. *passed with call*: some prim is one that ATen computes (sorting, pooling,",
        "random numbers; `call` in SPEC.md). *passed with extern*: some op of ATen is left whole, by name. (The first",
        "way knows externs only.) *refused*: a coded error under fullgraph=True, most often because data decides a",
        "shape or a branch; the default mode runs it, right, with a graph break or plain. *failed*: a wrong result or",
        "an uncoded error. *share right*: passed or refused.",
        "",
    ]  # fmt: skip
    for way, title in WAYS.items():
        if not any(way in row for row in ran):
            continue
        lines += [f"### {title}", "", *_table(way, ran), ""]
    lines += ["## Not passed", "", *_not_passed(ran), "", "## Calls left to ATen", "", *_externs(ran)]
    return "\n".join(lines).rstrip() + "\n"


def _table(way: str, rows: list[Row]) -> list[str]:
    by_dtype: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found = row.get(way)
        if found is None:
            continue
        status = found["status"]
        if status == "passed" and found["externs"]:
            named = any(not target.startswith("prims.") for target in found["externs"])
            status = "passed with extern" if named else "passed with call"
        by_dtype[row["dtype"]][status] += 1
        by_dtype["all"][status] += 1
    kinds = ("passed", "passed with call", "passed with extern", "refused", "failed")
    lines = [
        f"| dtype | cases | {' | '.join(kinds)} | share passed | share right |",
        f"|---|{'---|' * (len(kinds) + 3)}",
    ]
    for dtype, counts in by_dtype.items():
        if dtype != "all":
            lines.append(_line(dtype, counts, kinds))
    return [*lines, _line("all", by_dtype["all"], kinds)]


def _line(dtype: str, counts: Counter[str], kinds: tuple[str, ...]) -> str:
    total = sum(counts.values())
    passed = sum(counts[kind] for kind in kinds if kind.startswith("passed"))
    shares = [f"{100 * part / max(total, 1):.1f} %" for part in (passed, passed + counts["refused"])]
    return f"| {dtype} | {total} | {' | '.join(str(counts[k]) for k in kinds)} | {' | '.join(shares)} |"


def _not_passed(rows: list[Row]) -> list[str]:
    """Operators by what stands in their way, dtypes joined."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in rows:
        if "broken" in row:
            found[row["op"], "failed", row["broken"][:120]].append(row["dtype"])
        for way in WAYS:
            outcome = row.get(way)
            if outcome is not None and outcome["status"] != "passed":
                detail = (
                    outcome["detail"].split(": ", 1)[-1]
                    if outcome["detail"].startswith("samples")
                    else outcome["detail"]
                )
                found[row["op"], outcome["status"], detail[:120]].append(row["dtype"])
    lines = ["| operator | status | dtypes | why |", "|---|---|---|---|"]
    order = sorted(found.items(), key=lambda item: (-RANK[item[0][1]], item[0][0]))
    return lines + [
        f"| {op} | {status} | {', '.join(dict.fromkeys(dtypes))} | {why.replace('|', ' ')} |"
        for (op, status, why), dtypes in order
    ]


def _externs(rows: list[Row]) -> list[str]:
    """The calls that compiled programs leave to ATen, prims and others, with the number of cases."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.get("compiled", {}).get("externs", ()))
    return [f"* `{target}`: {count}" for target, count in counts.most_common()]
