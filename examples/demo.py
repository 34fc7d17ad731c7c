"""The demo: real models, inference and training, on CPU, through all five stages.

    python -m examples.demo [--models NAME ...] [--no-torch-compile] [--json FILE]

For every model and mode a fresh process with fresh caches runs eager, stagefold and torch.compile: cold first call,
results and every gradient against eager, steady-state speed. A second process measures the warm start. The exit code
is 1 if any comparison fails, any model is not captured in one graph, or any worker dies.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.models import available

ROOT = Path(__file__).resolve().parent.parent
MODES = ("inference", "training")
TOLERANCE = 1e-3
"""Largest accepted error of a tensor relative to its largest magnitude, after float32 sums in another order."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", help="names of models (default: all)")
    parser.add_argument("--modes", nargs="*", default=MODES, choices=MODES)
    parser.add_argument("--no-torch-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    chosen = parser.parse_args()
    console = Console(stderr=True)
    cases = [case for case in available() if not chosen.models or case.name in chosen.models]
    if not cases:
        console.print(f"no such model; known: {', '.join(case.name for case in available())}")
        return 2
    rows = []
    for case in cases:
        for mode in chosen.modes:
            with console.status(f"{case.name}, {mode}: eager, stagefold, torch.compile..."):
                rows.append(measure(case.name, mode, peer=not chosen.no_torch_compile))
            console.print(f"{case.name}, {mode}: {summary(rows[-1])}")
    Console(width=max(Console().width, 150)).print(table(rows))
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))
    failed = [row for row in rows if not passed(row)]
    for row in failed:
        print(f"FAILED: {row['model']}, {row['mode']}: {summary(row)}", file=sys.stderr)
    return 1 if failed else 0


def measure(model: str, mode: str, *, peer: bool) -> dict:
    """One row: a cold worker, then a warm one over the same caches."""
    with tempfile.TemporaryDirectory(prefix="stagefold-demo-") as directory:
        cold = worker(model, mode, "cold", peer, directory)
        if "error" in cold:
            return cold
        warm = worker(model, mode, "warm", peer, directory)
        if "error" in warm:
            return warm
    return {**cold, "ours_warm": warm["ours_cold"], "peer_warm": warm.get("peer_cold"), "warm_cached": warm["cached"]}


def worker(model: str, mode: str, temperature: str, peer: bool, directory: str) -> dict:
    """Run `examples.worker` in a process of its own."""
    environment = {
        **os.environ,
        "STAGEFOLD_CACHE_DIR": f"{directory}/stagefold",
        "TORCHINDUCTOR_CACHE_DIR": f"{directory}/inductor",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "examples.worker", model, mode, temperature, "peer" if peer else "alone"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {"model": model, "mode": mode, "error": done.stderr.strip()[-2000:] or f"exit {done.returncode}"}
    return json.loads(lines[-1])


def passed(row: dict) -> bool:
    """Captured whole, equal to eager, and the second process compiled nothing."""
    return "error" not in row and row["error_max"] <= TOLERANCE and row["graphs"] == 1 and row["warm_cached"]


def summary(row: dict) -> str:
    if "error" in row:
        return row["error"]
    captured = f"{row['graphs']} graph, cold {row['ours_cold']:.2f} s"
    return f"error {row['error_max']:.1e} in {row['compared']} tensors, {captured}"


def table(rows: list[dict]) -> Table:
    out = Table(title="stagefold beside eager and torch.compile (one run, CPU; speed: times eager's)")
    for name in ("model", "mode", "graphs", "largest error", "tensors"):
        out.add_column(name)
    for name in ("cold s", "torch.compile", "ratio", "warm s", "torch.compile", "ratio"):
        out.add_column(name, justify="right")
    for name in ("eager ms", "speed", "torch.compile"):
        out.add_column(name, justify="right")
    for row in rows:
        if "error" in row:
            out.add_row(row["model"], row["mode"], "failed")
            continue
        out.add_row(
            row["model"], row["mode"], str(row["graphs"]), f"{row['error_max']:.1e}", str(row["compared"]),
            f"{row['ours_cold']:.2f}", number(row.get("peer_cold")), ratio(row["ours_cold"], row.get("peer_cold")),
            f"{row['ours_warm']:.2f}", number(row.get("peer_warm")), ratio(row["ours_warm"], row.get("peer_warm")),
            f"{row['eager_ms']:.1f}", f"{row['eager_ms'] / row['ours_ms']:.2f}",
            ratio(row["eager_ms"], row.get("peer_ms")),
        )  # fmt: skip
    return out


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def ratio(ours: float, peer: float | None) -> str:
    return "-" if not peer else f"{ours / peer:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
