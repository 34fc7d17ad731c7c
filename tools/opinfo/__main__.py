"""Run torch's operator database through the pipeline, three ways, and write docs/coverage.md.

    nox -s opinfo
    nox -s opinfo -- --shard 0/8 --dtype float32 --op softmax
    nox -s opinfo -- --way symbolic --dtype float32 --results .opinfo/symbolic.jsonl --report .opinfo/symbolic.md

Results are kept, a line for each operator and dtype, in `--results`; what is there is not run again, unless --again
names its status ("failed", "refused", "passed", "all"). An operator that crashes or hangs ends its worker alone.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tools.opinfo.report import report, summary, worst_status
from tools.opinfo.samples import DTYPES, database, is_supported

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("decomposition", "interpreted", "compiled")
ALL_WAYS = (*WAYS, "symbolic")
TIME_LIMIT = 400


class Worker:
    """A process of `tools.opinfo.worker`, started when needed and again after its end."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tools.opinfo.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},  # samples are of the CPU
            )  # fmt: skip
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(TIME_LIMIT)
        line = process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        fault = f"no answer in {TIME_LIMIT} s" if not ready else "the process ended"
        self.close()
        failed = {"status": "failed", "detail": f"{fault} (exit code {process.returncode})", "externs": []}
        return {"op": job["op"], "dtype": job["dtype"], "samples": 1, "gradient": False, "compiled": failed}

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def jobs(given: argparse.Namespace) -> list[dict[str, Any]]:
    """What the command line asks for, in the order of the database, dtype by dtype."""
    infos = database()
    every = [
        {"op": name, "dtype": dtype, "samples": given.samples, "ways": given.way or list(WAYS)}
        for dtype in given.dtype or DTYPES
        for name, info in infos.items()
        if (not given.op or name in given.op or info.name in given.op) and is_supported(info, dtype)
    ]
    index, count = map(int, given.shard.split("/"))
    return every[index::count]


def read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Results by operator and dtype; of two, the later one."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["op"], row["dtype"]): row for row in rows}


def work(queue: Queue[dict[str, Any]], path: Path, lock: threading.Lock, total: int) -> None:
    worker = Worker()
    try:
        while True:
            job = queue.get_nowait()
            found = worker.run(job)
            with lock, path.open("a") as file:
                file.write(json.dumps(found) + "\n")
                if worst_status(found) not in ("passed", "none"):
                    print(f"{total - queue.qsize()}/{total} {summary(found)}", flush=True)
    except Empty:
        return
    finally:
        worker.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nox -s opinfo --", description=__doc__)
    parser.add_argument("--op", action="append", default=[], help="an operator, by name (with or without its variant)")
    parser.add_argument("--dtype", action="append", default=[], choices=DTYPES)
    parser.add_argument("--way", action="append", default=[], choices=ALL_WAYS)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--shard", default="0/1", help="K/N: every N-th job, from the K-th on")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--results", type=Path, default=ROOT / ".opinfo" / "results.jsonl")
    parser.add_argument("--again", action="append", default=[], help="a status whose results are computed again")
    parser.add_argument("--report", type=Path, default=ROOT / "docs" / "coverage.md")
    given = parser.parse_args(arguments)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    known = read(given.results)
    redo = {*given.again, *(["all"] if given.op else [])}
    queue: Queue[dict[str, Any]] = Queue()
    for job in jobs(given):
        row = known.get((job["op"], job["dtype"]))
        if row is None or redo & {"all", worst_status(row)}:
            queue.put(job)
    lock, total = threading.Lock(), queue.qsize()
    threads = [threading.Thread(target=work, args=(queue, given.results, lock, total)) for _ in range(given.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = report(list(read(given.results).values()))
    print(text.split("\n## ")[0])
    if not given.op:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
