"""The command line that the scripts share: start the workers of each case, gather rows, write the page."""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from beside.case import ENGINES, Case
from beside.page import summary, table, write_section
from beside.worker import alone, together

ROOT = Path(__file__).resolve().parents[2]


def have_byte_code() -> None:
    """Compile our modules as an installer does: else each new process of a checkout that may not write spends a second
    on them, which a user's does not, and no other engine's does."""
    for package in (ROOT / "packages").iterdir():
        for directory in find_spec(package.name).submodule_search_locations:  # type: ignore[union-attr]
            compileall.compile_dir(directory, quiet=1)


def main(name: str, cases: Sequence[Case], quick: frozenset[str], doc: str) -> None:
    """Measure cases and print a line each; `--page` writes the section `name` of docs/performance.md."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names, or parts of them (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few cases in minutes, for the log alone")
    parser.add_argument("--no-peer", action="store_true", help="without torch.compile")
    parser.add_argument("--no-cold", action="store_true", help="steady speed alone: no first calls, no memory")
    parser.add_argument("--caches", type=Path, help="keep the engines' caches here: a case measured again starts warm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=Path, help="keep rows in this file (JSON), along with those of earlier runs")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md")
    parser.add_argument("--note", default="", help="a sentence on the run, for the page")
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "ENGINES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.worker:
        print(json.dumps(_work(cases, given)))
        return
    if given.page and given.quick:
        parser.error("--quick measures a few cases: the page wants all")
    chosen = [case for case in cases if not given.cases or any(part in case.name for part in given.cases)]
    chosen = [case for case in chosen if not given.quick or case.name in quick]
    have_byte_code()
    known: dict[str, Any] = json.loads(given.rows.read_text()) if given.rows and given.rows.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        hook = Path(directory) / "live_bytes.so"
        source = Path(__file__).parents[1] / "live_bytes.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(hook), str(source)], check=True)
        for case in chosen:
            known[case.name] = measure(case, not given.no_peer, given, hook)
            print(short_line(known[case.name]), flush=True)
            if given.rows:
                given.rows.write_text(json.dumps(known, indent=1))
    rows = [known[case.name] for case in cases if case.name in known]
    print("\n".join(summary(rows)))
    if given.page:
        many = given.threads > 1
        command = f"python {Path(sys.argv[0]).resolve().relative_to(ROOT)}" + f" --threads {given.threads}" * many
        setting = f"torch {torch.__version__}, {given.threads} thread{'s' * many}, {processor()}"
        setting += ", a case at a time" * bool(given.rows)
        note = f"{given.note}\n\n" * bool(given.note)
        section = name + f", {given.threads} threads" * many
        write_section(ROOT / "docs" / "performance.md", section, f"{command} --page", setting, note + table(rows))


def measure(case: Case, peer: bool, given: argparse.Namespace, hook: Path) -> dict[str, Any]:
    """A row: every engine alone with empty caches, then all together; an engine that fails is left out and named."""
    engines = [engine for engine in ENGINES if peer or engine != "torch.compile"]
    row: dict[str, Any] = {"name": case.name, "engines": {}, "failures": {}}
    with contextlib.ExitStack() as stack:
        if given.caches is None:
            caches = stack.enter_context(tempfile.TemporaryDirectory())
        else:
            caches = str(given.caches.resolve() / re.sub(r"\W+", "_", case.name))
            os.makedirs(caches, exist_ok=True)
        for engine in [] if given.no_cold else list(engines):
            found = _process(case, [engine, "alone"], given, caches, hook)
            if "failure" in found:
                engines.remove(engine)
                row["failures"][engine] = found["failure"]
            else:
                row["engines"][engine] = found
        found = _process(case, engines, given, caches, None)
    if "failure" in found:
        return row | {"failures": row["failures"] | {"together": found["failure"]}}
    for engine, figures in found.items():
        row["engines"].setdefault(engine, {}).update(figures)
    return row


def short_line(row: dict[str, Any]) -> str:
    """One line of the log."""
    engines = row["engines"]
    if "us" not in engines.get("eager", {}):
        return f"{row['name']:<32} FAILED: {row['failures']}"
    text = f"{row['name']:<32}{engines['eager']['us']:>10.1f} us"
    for name, figures in engines.items():
        if name != "eager":
            first = f", cold {figures['first']:.2f} s" if "first" in figures else ""
            text += (
                f"   {name} {figures['ratio']:.2f}x (spread {figures['spread']:.0%}{first}, warm {figures['warm']:.2f}"
            )
            text += f", ERROR {figures['error']:.1e})" if figures["error"] > 1e-2 else ")"
    return text + "".join(f"   {engine} FAILED: {why[-300:]}" for engine, why in row["failures"].items())


def _work(cases: Sequence[Case], given: argparse.Namespace) -> Any:
    name, *engines = [given.worker[0], *given.worker[1].split(",")]
    case = next(case for case in cases if case.name == name)
    if engines[-1] == "alone":
        return alone(case, engines[0])
    return together(case, engines, given.rounds)


def _process(
    case: Case, engines: Sequence[str], given: argparse.Namespace, caches: str, hook: Path | None
) -> dict[str, Any]:
    """What a worker prints, or why it failed."""
    command = [sys.executable, sys.argv[0], "--threads", str(given.threads), "--rounds", str(given.rounds)]
    command += ["--worker", case.name, ",".join(engines)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(given.threads),
        "STAGEFOLD_CACHE_DIR": f"{caches}/stagefold",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    if hook is not None:
        environment |= {"LD_PRELOAD": str(hook), "LIVE_BYTES": str(hook)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failure": done.stderr.strip()[-2000:] or f"exit {done.returncode}"}
    return json.loads(lines[-1])


def processor() -> str:
    """The name of the processor, and how many cores."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown processor"
    name = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")
    return f"{name}, {os.cpu_count()} cores"
