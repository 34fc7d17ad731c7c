"""Peak memory of a training step of the demo's transformer: eager, stagefold, torch.compile, each in its own process.

    python benchmarks/training_memory.py [--layers 6] [--batch 8] [--budgets 1 0.5 0] [--no-torch-compile]

The method: a preloaded malloc (`live_bytes.c`) counts the bytes in live blocks of 16 KiB and more, whoever asks for
them: torch's tensors, the arenas of compiled programs, which stay allocated between steps, buffers of libraries. The
step is zero_grad, forward, backward. Reported, above the model and its input: what is live between the forward and the
backward, and the peak of the step, gradients included. Steps before it have compiled and warmed everything up.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--budgets", type=float, nargs="*", default=[1.0, 0.5, 0.0])
    parser.add_argument("--no-torch-compile", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(measure(given)))
        return
    engines = ["eager", *(f"stagefold {budget:g}" for budget in given.budgets)]
    engines += [] if given.no_torch_compile else ["torch.compile"]
    with tempfile.TemporaryDirectory() as directory:
        hook = Path(directory) / "live_bytes.so"
        source = Path(__file__).with_name("live_bytes.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(hook), str(source)], check=True)
        rows = {engine: in_a_process(engine, hook) for engine in engines}
    print(f"{given.layers} layers, batch {given.batch}, length {given.length}; MiB above the model")
    print(f"  {'engine':<16}{'held for backward':>20}{'peak of the step':>20}{'of eager':>10}")
    for engine, row in rows.items():
        part = row["peak"] / rows["eager"]["peak"]
        print(f"  {engine:<16}{row['held']:>20.1f}{row['peak']:>20.1f}{part:>10.2f}")


def in_a_process(engine: str, hook: Path) -> dict[str, float]:
    """The measurement of one engine; stagefold's name is followed by its memory budget."""
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", engine]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "LD_PRELOAD": str(hook), "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{engine}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(given: argparse.Namespace) -> dict[str, float]:
    """MiB above the model: live between the directions, and at the peak."""
    import torch

    from examples.models.gpt2 import GPT, GPTConfig

    torch.manual_seed(0)
    config = GPTConfig(layers=given.layers, context=given.length)
    model = GPT(config)
    ids = torch.randint(0, config.vocabulary, (given.batch, given.length))
    counter = ctypes.CDLL(os.environ["LD_PRELOAD"])
    counter.live_bytes.restype = counter.peak_bytes.restype = ctypes.c_long
    before = counter.live_bytes()
    call = compiled(model, given.worker)
    for _ in range(4):
        counter.reset_peak()
        model.zero_grad()
        logits, loss = call(ids, ids)
        held = counter.live_bytes()
        loss.backward()
        peak = counter.peak_bytes()
        del logits, loss
    return {"held": (held - before) / MIB, "peak": (peak - before) / MIB}


def compiled(model: Any, engine: str) -> Callable[..., Any]:
    """The model under an engine."""
    if engine == "eager":
        return model
    if engine == "torch.compile":
        import torch

        return torch.compile(model)
    import stagefold

    return stagefold.compile(model, fullgraph=True, options={"partition.memory_budget": float(engine.split()[1])})


if __name__ == "__main__":
    main()
