"""The table of transformers models: captured and compiled against eager, beside torch.compile(backend="eager").

    python -m integration_tests.zoo [--quick] [--no-stages] [--out FILE] [CLASS ...]

Each class trains a step on labels (outputs, loss, gradients, buffers, random numbers) and evaluates once, captured
(backend="eager") and through all stages (judged by float64). --quick leaves torch.compile
out, --no-stages the stages behind the capture. Writes the table to --out. Exit code 1 if any result differs.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

import torch

from integration_tests.zoo.families import cases
from integration_tests.zoo.measure import Row, measure

HEADING = """\
# Models of transformers

Made by `{command}` (torch {torch}, CPython {python}).

Small random configurations; one training step with labels and one evaluation of each class. "Equal" means: outputs of
the same class with the same keys, loss, gradients, buffers and random numbers as eager, when captured
(`backend="eager"`; to a millionth of the largest: some models mask their attention in another way where
`torch.compiler.is_compiling()`){stages}.
Graphs, breaks (different places and causes) and capture times are of the first training step; the time is what the
first step takes more than a later one, in seconds of processor time on one thread.
"""
STAGES = ", and when compiled by all stages (within rounding, judged by float64)"
COLUMNS = ("family", "class", "graphs", "breaks", "capture", "torch: graphs", "breaks", "capture", "equal")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration_tests.zoo", description="The table of models.")
    parser.add_argument("classes", nargs="*")
    parser.add_argument("--quick", action="store_true", help="without torch.compile")
    parser.add_argument("--no-stages", action="store_true", help="capture alone, without the stages behind it")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options = [option for option in arguments if option not in ("--out", str(given.out))]
    command = " ".join(["python -m integration_tests.zoo", *options])
    stages = "" if given.no_stages else STAGES
    chosen = [case for case in cases() if not given.classes or case.class_name in given.classes]
    rows, text = [], ""
    for case in chosen:
        rows.append(measure(case, with_torch=not given.quick, with_stages=not given.no_stages))
        print(_line(rows[-1]), *rows[-1].differences, sep="\n  ", flush=True)
        text = _table(rows, command, stages)
        if given.out is not None:
            given.out.write_text(text)  # after each class: a run that is stopped leaves what it has
        gc.collect()
    print(text)
    return 1 if any(row.differences for row in rows) else 0


def _cells(row: Row) -> tuple[str, ...]:
    ours, peer = row.captured, row.torch
    beside = ("", "", "") if peer is None else (str(peer.graphs), str(peer.breaks), f"{peer.seconds:.2f}")
    return (row.case.family, row.case.class_name, str(ours.graphs), str(ours.breaks), f"{ours.seconds:.2f}", *beside,
            "no" if row.differences else "yes")  # fmt: skip


def _line(row: Row) -> str:
    return " | ".join(_cells(row))


def _table(rows: list[Row], command: str, stages: str) -> str:
    whole = sum(row.captured.graphs == 1 and row.captured.breaks == 0 for row in rows)
    equal = sum(not row.differences for row in rows)
    lines = [
        HEADING.format(command=command, stages=stages, torch=torch.__version__, python=sys.version.split()[0]),
        f"{len(rows)} classes: {equal} equal to eager, {whole} in one graph{_peer_summary(rows)}.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(_cells(row)) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _peer_summary(rows: list[Row]) -> str:
    peers = [(row.captured.seconds, row.torch) for row in rows if row.torch is not None]
    if not peers:
        return ""
    whole = sum(peer.graphs == 1 and peer.breaks == 0 for _, peer in peers)
    ratio = sum(seconds for seconds, _ in peers) / max(1e-9, sum(peer.seconds for _, peer in peers))
    return f"; torch.compile takes {whole} in one graph; capturing all of them costs {ratio:.2f} of its time"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
