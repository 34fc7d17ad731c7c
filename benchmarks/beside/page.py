"""The tables of docs/performance.md: one section for each script, replaced when that script runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TITLE = """# Performance on CPU

Three engines run the same program in one process, in turns: eager torch, `torch.compile` (its defaults), and stagefold
(`nox -s bench`).
"Speed" is eager's time over the engine's (above 1 is faster than eager): the median over rounds of the ratio within
a round; with one thread, of processor time. "Spread" is the distance of the quartiles of stagefold's times over their
median. Cold is the first step with empty caches, warm the first step of a new process with filled ones (wall time,
the engine's imports included). Memory is the peak of a later step above the model and its inputs, as counted by a
preloaded malloc (`benchmarks/live_bytes.c`).
"""
HEADER = (
    "| case | eager us | torch.compile | stagefold | over torch.compile | spread "
    "| cold s: torch.compile | stagefold | ratio | warm s: torch.compile | stagefold | ratio "
    "| MiB: eager | torch.compile | stagefold |"
)


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers; nan of none."""
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table with a row for each case, and the lines of geometric means under it."""
    lines = [HEADER, "|---" + "|---:" * (HEADER.count("|") - 2) + "|", *(_line(row) for row in rows)]
    return "\n".join([*lines, "", *summary(rows)])


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Geometric means over the cases that every engine ran, and what is slower than eager by more than 5 %."""
    good = [row for row in rows if "stagefold" in row["engines"]]
    peers = [row for row in good if "torch.compile" in row["engines"]]
    lines = [f"{len(good)} cases. Geometric means: speed of stagefold {_mean(good, 'ratio', 'stagefold')}"]
    if peers:
        lines[0] += (
            f" (over the {len(peers)} with a peer: {_mean(peers, 'ratio', 'stagefold')}; of torch.compile "
            f"{_mean(peers, 'ratio', 'torch.compile')}; stagefold over torch.compile "
            f"**{geometric_mean(_over(row) for row in peers):.2f}**)"
        )
        lines[0] += "".join(
            f"; {name} start over torch.compile's **{geometric_mean(_part(row, key) for row in peers):.3f}**"
            for name, key in (("cold", "first"), ("warm", "warm"))
        )
    lines[0] += "."
    slow = [row for row in good if row["engines"]["stagefold"]["ratio"] < 0.95]
    named = ", ".join(f"{row['name']} ({row['engines']['stagefold']['ratio']:.2f})" for row in slow)
    return [*lines, "", f"Slower than eager by more than 5 %: {named or 'none'}."]


def write_section(path: Path, name: str, command: str, setting: str, text: str) -> None:
    """Put a script's section into the page, in place of its last one."""
    page = path.read_text() if path.exists() else TITLE
    section = f"\n## {name}\n\nMade by `{command}` ({setting}).\n\n{text}\n"
    pattern = re.compile(rf"\n## {re.escape(name)}\n.*?(?=\n## |\Z)", re.DOTALL)
    page = pattern.sub(lambda _: section, page) if pattern.search(page) else page + section
    path.write_text(page)


def _line(row: dict[str, Any]) -> str:
    engines = row["engines"]
    ours, peer, eager = engines.get("stagefold"), engines.get("torch.compile"), engines["eager"]
    cells = [row["name"], f"{eager['us']:.0f}", _number(peer, "ratio"), _number(ours, "ratio")]
    both = ours is not None and peer is not None
    cells += [f"{_over(row):.2f}" if both else "", f"{ours['spread']:.0%}" if ours else "failed"]
    for key in ("first", "warm"):
        cells += [_number(peer, key), _number(ours, key), f"{_part(row, key):.2f}" if both and key in ours else ""]
    cells += [_number(engine, "peak", 1) for engine in (eager, peer, ours)]
    return "| " + " | ".join(cells) + " |"


def _number(engine: dict[str, Any] | None, key: str, digits: int = 2) -> str:
    return f"{engine[key]:.{digits}f}" if engine is not None and key in engine else ""


def _over(row: dict[str, Any]) -> float:
    return row["engines"]["stagefold"]["ratio"] / row["engines"]["torch.compile"]["ratio"]


def _part(row: dict[str, Any], key: str) -> float:
    ours, peer = row["engines"]["stagefold"].get(key, math.nan), row["engines"]["torch.compile"].get(key, math.nan)
    return ours / peer


def _mean(rows: Sequence[dict[str, Any]], key: str, engine: str) -> str:
    return f"{geometric_mean(row['engines'][engine][key] for row in rows):.2f}"
