"""Each operator of torch's own database (OpInfo) alone, compiled and in eager, small and large, forward and backward.

    python benchmarks/every_op.py [--size small|large] [--rows FILE] [--dtype float32] [--shard 0/8] [--page]
                                  [--device cuda] [OP ...]

One thread, processor time, in turns; a figure is the median over rounds of our time over eager's within a round.
On a GPU wall time, with a synchronisation in front and behind of each round; shards that run beside each other compile
at once and measure one after the other. Small is the largest sample that the database draws, large one of about 260,000
elements (on a GPU 16 million, where the operator works on elements alone). An operator that is refused
under fullgraph, or that eager refuses, is counted apart. Each runs in a process of its own. Rows are kept in `--rows`
(JSON, a line each) and not measured again; `--page` writes the section of docs/performance.md.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from beside.page import geometric_mean, write_section
from beside.run import ROOT, processor
from beside.turns import in_turns
from torch.testing import make_tensor
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo import core

import stagefold

sys.path.insert(0, str(ROOT))
from tools.opinfo.samples import Sample, copied, database, has_gradient, is_supported, tensors

SIZES = ("small", "large")
LARGE = {"XS": 16, "S": 48, "M": 64, "L": 96}
"""What the database's constants of sizes are for large samples: three dimensions of S have 110,000 elements."""
LIMITS = {"small": 1.10, "large": 1.05}
"""Above this share of eager's time a figure is counted on the page."""
SIDE = {"cpu": 512, "cuda": 4096}
"""Of the large square that operators are given that work on elements alone."""
NAMED = {"cpu": 100, "cuda": 20}
"""Microseconds of eager's below which the page counts operators and names none."""
SECONDS = 120
ROUND = 0.004

Call = Callable[[], Any]


@contextmanager
def constants(values: dict[str, int]) -> Iterator[None]:
    """The database draws samples of other sizes."""
    modules = [core, common_methods_invocations]
    modules += [m for name, m in list(sys.modules.items()) if name.startswith("torch.testing._internal.opinfo.def")]
    before = [(m, name, getattr(m, name)) for m in modules for name in values if hasattr(m, name)]
    for module, name, _ in before:
        setattr(module, name, values[name])
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def candidates(info: Any, dtype: torch.dtype, size: str, gradient: bool, device: str) -> list[Sample]:
    """Samples of an operator, the ones with the most elements first."""
    if size == "large" and isinstance(info, core.UnaryUfuncInfo | core.BinaryUfuncInfo):
        domains = (
            [info.domain]
            if isinstance(info, core.UnaryUfuncInfo)
            else [info.lhs_make_tensor_kwargs, info.rhs_make_tensor_kwargs]
        )
        made = [_operand(domain, dtype, gradient, device) for domain in domains]
        return [
            Sample(
                made[0], tuple(made[1:]), dict(info.sample_kwargs(device, dtype, made[0])[0] if len(made) == 1 else {})
            )
        ]
    with constants(LARGE if size == "large" else {}):
        drawn = itertools.islice(info.sample_inputs(device, dtype, requires_grad=gradient), 60)
        found = [Sample(s.input, tuple(s.args), dict(s.kwargs)) for s in drawn]
    return sorted(found, key=lambda s: -sum(x.numel() for x in tensors(s.call())))


def _operand(domain: Any, dtype: torch.dtype, gradient: bool, device: str) -> torch.Tensor:
    wanted = domain if isinstance(domain, dict) else {"low": domain[0], "high": domain[1]}
    return make_tensor((SIDE[device],) * 2, device=device, dtype=dtype, requires_grad=gradient, **wanted)


def measure(name: str, dtype: str, size: str, rounds: int, device: str) -> dict[str, Any]:
    """{"forward": ratio, "both": ratio where it has gradients, "us": eager's forward}; or {"refused": why}."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    info = database()[name]
    gradient = has_gradient(info, dtype)
    sample, gradient = next(
        runnable(info, candidates(info, getattr(torch, dtype), size, gradient, device), gradient), (None, False)
    )
    if sample is None:
        return {"refused": "eager runs no sample within a second"}
    compiled = stagefold.compile(partial(_call, info.op), fullgraph=True)
    try:
        compiled(copied([sample])[0].call())
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200]}
    plain, given = (copied([sample])[0].call() for _ in range(2))
    steps = _step(partial(_call, info.op), given), _step(compiled, given)
    with torch.no_grad():
        compiled(plain)
    if gradient:
        steps[1]()
    with _alone_on(device):
        with torch.no_grad():
            forward, microseconds = ratio(lambda: _call(info.op, plain), lambda: compiled(plain), rounds, device)
        row: dict[str, Any] = {"forward": forward, "us": microseconds, "numel": sum(x.numel() for x in tensors(plain))}
        if gradient:
            row["both"], row["both_us"] = ratio(*steps, rounds, device)
    return row


@contextmanager
def _alone_on(device: str) -> Iterator[None]:
    """No other shard measures on the GPU meanwhile."""
    if device == "cpu":
        yield
        return
    with (Path(tempfile.gettempdir()) / "every_op.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _call(op: Callable[..., Any], given: Any) -> Any:
    input, args, kwargs = given
    return op(input, *args, **kwargs)


def _step(call: Callable[[Any], Any], given: Any) -> Call:
    """A call and its gradients, of tangents that are ones."""
    leaves = [x for x in tensors(given) if x.requires_grad]

    def step() -> None:
        roots = [x for x in tensors(call(given)) if x.requires_grad]
        torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True)

    return step


def runnable(info: Any, samples: list[Sample], gradient: bool) -> Iterator[tuple[Sample, bool]]:
    """The samples that eager runs within a second, and whether it has gradients there."""
    for sample, wanted in itertools.product(samples, (True, False) if gradient else (False,)):
        start = time.process_time()
        try:
            given = copied([sample])[0].call()
            _step(partial(_call, info.op), given)() if wanted else _call(info.op, given)
        except Exception:
            continue  # eager's own refusal
        if time.process_time() - start < 1:
            yield sample, wanted


def ratio(eager: Call, ours: Call, rounds: int, device: str) -> tuple[float, float]:
    """The median of our time over eager's, and eager's microseconds."""
    seconds, (speed,) = in_turns((eager, ours), rounds, ROUND, time.process_time if device == "cpu" else _synchronized)
    return 1 / speed, seconds * 1e6


def _synchronized() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def _worker(pipe: Any) -> None:
    for arguments in iter(pipe.recv, None):
        try:
            pipe.send(measure(*arguments))
        except Exception as error:
            pipe.send({"refused": f"the benchmark: {type(error).__name__}: {error}"[:200]})


class Worker:
    """A process that measures, and may crash or hang: on a CPU forked for each operator, on a GPU another one behind a
    fault alone (a process that has begun to use CUDA cannot fork)."""

    def __init__(self, device: str) -> None:
        self.context = multiprocessing.get_context("fork" if device == "cpu" else "spawn")
        self.is_kept = device != "cpu"
        self.process: Any = None

    def measure(self, *arguments: Any) -> dict[str, Any]:
        """`measure` there."""
        if self.process is None:
            self.pipe, theirs = self.context.Pipe()
            self.process = self.context.Process(target=_worker, args=(theirs,))
            self.process.start()
            theirs.close()
        self.pipe.send(arguments)
        try:
            found = self.pipe.recv() if self.pipe.poll(SECONDS) else {"refused": f"not done in {SECONDS} s"}
        except EOFError:
            found = {"refused": "the process ended"}
        if not self.is_kept or found.get("refused", "").startswith(("not done", "the process", "the benchmark")):
            self.end()
        return found

    def end(self) -> None:
        """Have the next call start another process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
        self.process = None


def page(rows: list[dict[str, Any]], device: str) -> str:
    """Counts and geometric means of each size, and what is a quarter above eager where that takes `NAMED` or more: what
    is faster is a view or a small kernel, of which a call's guards are seen."""
    lines = ["| size | pass | operators | geometric mean | above the limit |", "|---|---|---:|---:|---:|"]
    slow, above, short = [], 0, 0
    for size, (key, us) in itertools.product(SIZES, (("forward", "us"), ("both", "both_us"))):
        own = [row for row in rows if row["size"] == size and key in row]
        over = [row for row in own if row[key] > LIMITS[size]]
        above, short = above + len(over), short + sum(row[us] < NAMED[device] for row in over)
        named = [row for row in over if row[key] > 1.25 and row[us] >= NAMED[device]]
        slow += [(row[key], f"{row['op']} ({size}, {key}) {row[key]:.2f}") for row in named]
        mean = geometric_mean(row[key] for row in own)
        lines.append(f"| {size} | {key} | {len(own)} | {mean:.2f} | {len(over)} |")
    refused = sorted({row["op"] for row in rows if "refused" in row})
    listed = ", ".join(text for _, text in sorted(slow, reverse=True)) or "none"
    rest = f"Of the {above} figures above the limit {short} are of calls that take eager less than {NAMED[device]} us."
    others = f"A quarter above eager, of those that take longer (times eager's time): {listed}."
    return "\n".join([*lines, "", f"{rest} {others}", "", f"Not measured: {len(refused)} operators."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", help="names (default: all)")
    parser.add_argument("--size", action="append", choices=SIZES)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--rows", type=Path, help=".every_op.DEVICE.jsonl")
    parser.add_argument("--device", choices=SIDE, default="cpu")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md, or docs/gpu.md")
    given = parser.parse_args()
    given.rows = given.rows or ROOT / f".every_op.{given.device}.jsonl"
    known = [json.loads(line) for line in given.rows.read_text().splitlines()] if given.rows.exists() else []
    done = {(row["op"], row["dtype"], row["size"]) for row in known}
    index, count = map(int, given.shard.split("/"))
    names = [n for n, i in database().items() if is_supported(i, given.dtype) and (not given.ops or n in given.ops)]
    worker = Worker(given.device)
    for name, size in itertools.product(names[index::count], given.size or SIZES):
        if (name, given.dtype, size) in done:
            continue
        row = {
            "op": name,
            "dtype": given.dtype,
            "size": size,
            **worker.measure(name, given.dtype, size, given.rounds, given.device),
        }
        known.append(row)
        with given.rows.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    worker.end()
    print(page(known, given.device))
    if given.page:
        is_cpu = given.device == "cpu"
        where = f"1 thread, {processor()}" if is_cpu else torch.cuda.get_device_name()
        write_section(
            ROOT / "docs" / ("performance.md" if is_cpu else "gpu.md"),
            "Every operator",
            f"python benchmarks/every_op.py --page{'' if is_cpu else ' --device cuda'}",
            f"torch {torch.__version__}, {given.dtype}, {where}",
            page(known, given.device),
        )


if __name__ == "__main__":
    main()
