"""Tables of docs/gpu.md out of what benchmarks/gpu.py printed: later files replace rows of earlier ones.

    python benchmarks/gpu_table.py LOG [LOG ...]

A ratio is eager's time over the engine's in the engine's own run; the geometric means are over the cases that both
compilers ran.
"""

from __future__ import annotations

import argparse
import re
import statistics
from pathlib import Path
from typing import NamedTuple

ROW = re.compile(
    r"(?P<case>\S.*?)\s+(?P<engine>eager|torch|ours)\s+(?P<us>[\d.]+) us\s+eager/it\s+(?P<ratio>[\d.]+)"
    r"\s+first\s+(?P<first>[\d.]+) s\s+peak\s+(?P<peak>-?[\d.]+) MiB"
)


class Row(NamedTuple):
    us: float
    ratio: float
    first: float
    peak: float


def read(paths: list[Path]) -> dict[str, dict[str, Row]]:
    """Rows by case and engine. Where an engine was run again, so was eager: its later row is the one that counts."""
    found: dict[str, dict[str, Row]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            if match := ROW.match(line):
                numbers = (float(match[name]) for name in ("us", "ratio", "first", "peak"))
                found.setdefault(match["case"], {})[match["engine"]] = Row(*numbers)
    return found


def table(rows: dict[str, dict[str, Row]]) -> str:
    lines = [
        "| case | eager ms | torch.compile | stagefold | first s: torch.compile | stagefold "
        "| peak MiB: eager | torch.compile | stagefold |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case, engines in rows.items():
        eager, peer, ours = engines["eager"], engines.get("torch"), engines["ours"]
        cells = [case, f"{eager.us / 1e3:.3g}", f"{peer.ratio:.2f}" if peer else "", f"{ours.ratio:.2f}"]
        cells += [f"{peer.first:.1f}" if peer else "", f"{ours.first:.1f}", f"{eager.peak:.0f}"]
        cells += [f"{peer.peak:.0f}" if peer else "", f"{ours.peak:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines[:2], *sorted(lines[2:])])


def means(rows: dict[str, dict[str, Row]]) -> str:
    """Geometric means of the ratios to eager, of inference and of training."""
    lines = []
    for kind in ("inference", "training"):
        both = [r for case, r in rows.items() if case.endswith("train") == (kind == "training") and "torch" in r]
        if both:
            peer, ours = (statistics.geometric_mean(r[name].ratio for r in both) for name in ("torch", "ours"))
            lines.append(
                f"{kind}, {len(both)} cases: torch.compile {peer:.2f}, stagefold {ours:.2f}: {ours / peer:.2f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="+", type=Path)
    rows = read(parser.parse_args().logs)
    complete = {case: engines for case, engines in rows.items() if {"eager", "ours"} <= set(engines)}
    print(table(complete))
    print()
    print(means(complete))


if __name__ == "__main__":
    main()
