"""Inference on the CPU beside ONNX Runtime and OpenVINO, which users pick instead of a compiler, in one process.

    pip install onnx onnxscript onnxruntime openvino    (or: nox -s engines)
    python benchmarks/engines.py [--threads 1] [--bfloat16] [--page] [NAME ...]

NAME: parts of the names of cases of `models.py` in float32 (default: all, batch 1 and 8).
Eager, stagefold, stagefold with options={"freeze": True}, torch.compile with inductor's freezing, and both engines,
with a file of ONNX that `torch.onnx.export` writes, have the same weights and threads and take turns. One thread:
processor time; more: wall-clock time. A figure is the speed over eager's: the median over rounds of the ratio within
a round. `error` is the largest difference of an engine's result from eager's, over eager's largest value. --bfloat16:
what computes in bfloat16 where it can (autocast; OpenVINO's hint; ONNX Runtime has no such mode and is left out).
What an engine refuses is said, and its column is empty.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from beside.case import Case, Program, first_tensor
from beside.page import geometric_mean, write_section
from beside.run import ROOT, processor
from beside.turns import in_turns
from models import CASES

import stagefold

ENGINES = ("stagefold", "frozen", "torch.compile, frozen", "ONNX Runtime", "OpenVINO")
HEADER = f"| case | eager us | {' | '.join(ENGINES)} | over the better | error |"


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile with its constants folded into the program."""
    from torch._inductor import config

    with config.patch(freezing=True):
        return torch.compile(call)


def exported(program: Program, directory: Path) -> Path:
    """The program as a file of ONNX."""
    path = directory / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own parts
        torch.onnx.export(program.call.eval(), program.args, str(path), dynamo=True, verbose=False)
    return path


def onnxruntime_of(path: Path, threads: int) -> Callable[..., Any]:
    """The file in ONNX Runtime, on arrays that share the tensors' memory."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda *args: torch.from_numpy(
        session.run(None, {name: arg.numpy() for name, arg in zip(names, args, strict=True)})[0]
    )


def openvino_of(path: Path, threads: int, bfloat16: bool) -> Callable[..., Any]:
    """The file in OpenVINO, for the least time of one call."""
    import openvino

    precision = "bf16" if bfloat16 else "f32"
    options = {
        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision,
    }  # fmt: skip
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
    return lambda *args: torch.from_numpy(request.infer([arg.numpy() for arg in args], share_inputs=True)[0])


def engines(
    program: Program, directory: Path, threads: int, bfloat16: bool
) -> Iterator[tuple[str, Callable[[], Callable[[], Any]]]]:
    """(name, what makes a call without arguments) of eager and of each engine."""
    step = partial(partial, program.step)
    file = cache(lambda: exported(program, directory))
    yield "eager", lambda: step(program.call)
    yield "stagefold", lambda: step(stagefold.compile(program.call))
    yield "frozen", lambda: step(stagefold.compile(program.call, options={"freeze": True}))
    yield "torch.compile, frozen", lambda: step(compiled(program.call))
    if not bfloat16:
        yield "ONNX Runtime", lambda: partial(onnxruntime_of(file(), threads), *program.args)
    yield "OpenVINO", lambda: partial(openvino_of(file(), threads, bfloat16), *program.args)


def measure(case: Case, threads: int, bfloat16: bool) -> tuple[str, dict[str, float], float]:
    """A row of the table, the speeds over eager's, and our best over the best of the others.

    What another engine refuses is printed, and its column stays empty.
    """
    torch.manual_seed(0)
    program = case.build()
    calls, results = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        for name, make in engines(program, Path(directory), threads, bfloat16):
            try:
                call = make()
                results[name] = first_tensor(call())
            except Exception as error:
                if name not in ENGINES[3:]:
                    raise
                print(f"{case.name}: {name} refuses it: {type(error).__name__}: {str(error).splitlines()[0][:150]}")
            else:
                calls[name] = call
        clock = time.process_time if threads == 1 else time.perf_counter
        seconds, found = in_turns(list(calls.values()), clock=clock)
    speeds = dict(zip(list(calls)[1:], found, strict=True))
    eager = results.pop("eager").float()
    error = max(((one.float() - eager).abs().max() / eager.abs().max()).item() for one in results.values())
    other = max((speed for name, speed in speeds.items() if name in ENGINES[3:]), default=float("nan"))
    over = max(speeds["stagefold"], speeds["frozen"]) / other
    columns = " | ".join(f"{speeds[name]:.2f}" if name in speeds else "" for name in ENGINES)
    return f"| {case.name} | {seconds * 1e6:.0f} | {columns} | {over:.2f} | {error:.0e} |", speeds, over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    dtype = "bf16" if given.bfloat16 else "f32"
    every = [case for case in CASES if f"inference, {dtype}" in case.name]
    chosen = [case for case in every if not given.cases or any(part in case.name for part in given.cases)]
    lines = [HEADER, "|---" + "|---:" * (HEADER.count("|") - 2) + "|"]
    print(HEADER, flush=True)
    rows: list[tuple[dict[str, float], float]] = []
    for case in chosen:
        line, *row = measure(case, given.threads, given.bfloat16)
        rows.append((row[0], row[1]))
        lines.append(line)
        print(line, flush=True)
    means = [f"{name} {geometric_mean(s[name] for s, _ in rows if name in s):.2f}" for name in ENGINES]
    over = geometric_mean(over for _, over in rows)
    lines += [
        "",
        f"{len(rows)} cases. Geometric means: {', '.join(means)}; the best of ours over the better {over:.2f}.",
    ]
    print(lines[-1])
    if given.page:
        clock = "processor time" if given.threads == 1 else "wall-clock time"
        setting = f"torch {torch.__version__}, {given.threads} threads, {clock}, {dtype}, {processor()}"
        title = f"Inference engines, {dtype}, {given.threads} threads"
        page, command = (
            ROOT / "docs" / "performance.md",
            f"python benchmarks/engines.py --threads {given.threads} --page",
        )
        write_section(page, title, command, setting, "\n".join(lines))


if __name__ == "__main__":
    main()
