"""One program for many sizes: how often it is compiled beside torch.compile, and what leaving sizes open costs.

    python benchmarks/dynamic.py [--page]

Compilations: the same calls through stagefold and through torch.compile(dynamic=None), whose back end only counts (a
graph is a compilation, its kernels are not made); stagefold's results are compared with eager's. Cold: the same first
step with fixed and with symbolic sizes, each in a process of its own with empty caches, in processor time, the C++
compiler's included. Steady: both versions in turns, at the same size. Captures: what symbols add, and what guards take,
in the fastest of twenty captures, made in turns with and without symbols in a process that has made some before.
`--page` writes docs/dynamic.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from beside import changing
from beside.networks import UNet, convnext, mobilenet

import bytecap
import bytecap.driver.engine
from stagefold.backend import StagefoldBackend
from stagefold.options import parse_options

PAGE = Path(__file__).parents[1] / "docs" / "dynamic.md"
ROUNDS = 21
CAPTURES = 20

Call = Callable[..., Any]
Case = tuple[Callable[[], torch.nn.Module], Callable[[torch.nn.Module, Call], Iterator[torch.Tensor]]]
CASES: dict[str, Case] = {
    "GPT-2, batch 2 to 64, sequence 3 to 512": (changing.gpt2, lambda model, call: changing.texts(call, True)),
    "BERT, the same sizes": (changing.bert, lambda model, call: changing.texts(call, False)),
    "Llama, the same sizes": (changing.llama, lambda model, call: changing.texts(call, True)),
    "ResNet, images of 64 to 128": (changing.resnet, lambda model, call: changing.images(call)),
    "GPT-2, 200 tokens one by one, growing cache": (changing.gpt2, lambda model, call: changing.decoded(call)),
    "Llama, 200 tokens one by one, growing cache": (changing.llama, lambda model, call: changing.decoded(call)),
    "T5, generate, 4 sizes of prompts": (changing.t5, changing.generated),
}
STEPS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "GPT-2": (changing.gpt2, lambda: (torch.randint(0, 100, (8, 64)),)),
    "BERT": (changing.bert, lambda: (torch.randint(0, 100, (8, 64)),)),
    "Llama": (changing.llama, lambda: (torch.randint(0, 100, (8, 64)),)),
    "ResNet": (changing.resnet, lambda: (torch.randn(4, 3, 64, 64),)),
    "MobileNet-like": (lambda: mobilenet().eval(), lambda: (torch.randn(4, 3, 64, 64),)),
    "ConvNeXt-like": (lambda: convnext().eval(), lambda: (torch.randn(4, 3, 64, 64),)),
    "UNet": (lambda: UNet().eval(), lambda: (torch.randn(4, 3, 32, 32),)),
}


class Counting:
    """The default back end, which counts."""

    takes_symbols = True

    def __init__(self) -> None:
        self.backend = StagefoldBackend(parse_options(None, None))
        self.count = 0

    def __call__(self, capture: Any, inputs: Any) -> Call:
        self.count += 1
        return self.backend(capture, inputs)


# -- compilations


def compilations(name: str) -> tuple[int, int | str, float]:
    """(ours, torch.compile's, greatest difference from eager relative to its greatest number)."""
    build, run = CASES[name]
    counting, graphs, peer = Counting(), [0], build()

    def counted(graph: Any, inputs: Any) -> Call:
        graphs[0] += 1
        return graph.forward  # type: ignore[no-any-return]

    with torch.no_grad():
        eager = build()
        expected = list(run(eager, eager.forward))
        ours = build()
        found = list(run(ours, bytecap.optimize(ours.forward, counting)))
        torch._dynamo.reset()
        for _ in run(peer, torch.compile(peer.forward, backend=counted)):
            pass
    error = max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in zip(found, expected, strict=True))
    return counting.count, graphs[0], error


# -- what symbols cost


def step_of(model: torch.nn.Module, call: Call, inputs: tuple[Any, ...], training: bool) -> Call:
    parameters = list(model.parameters())

    def step() -> None:
        found = call(*inputs)
        logits = getattr(found, "logits", found)
        if training:
            torch.autograd.grad(logits.sum(), parameters, allow_unused=True)

    def plain() -> None:
        with torch.no_grad():
            step()

    return step if training else plain


def cold(name: str, training: bool, dynamic: bool) -> float:
    """Processor seconds of a first step. For a process of its own."""
    step = _first_step(name, training, dynamic)
    warm_up = bytecap.optimize(lambda x: torch.relu(x @ x) + 1, Counting(), dynamic=dynamic)
    warm_up(torch.randn(4, 4))
    start = _processor_seconds()
    step()
    return _processor_seconds() - start


def captures(name: str, training: bool) -> list[dict[str, float]]:
    """Processor seconds of a capture and of its guards, without symbols and with. For a process of its own."""
    spent = {"capture": 0.0, "guards": 0.0}

    def timed(place: str, function: Call) -> Call:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[place] += time.process_time() - start

        return call

    for place, function in (("capture", "capture"), ("guards", "compile_guards"), ("guards", "with_relations")):
        setattr(bytecap.driver.engine, function, timed(place, getattr(bytecap.driver.engine, function)))
    made: tuple[list[dict[str, float]], ...] = [], []
    for _ in range(CAPTURES + 2):
        for dynamic, found in zip((False, True), made, strict=True):
            step = _first_step(name, training, dynamic)
            spent.update(capture=0.0, guards=0.0)
            step()
            found.append(dict(spent))
    return [min(found[2:], key=lambda one: sum(one.values())) for found in made]


def _first_step(name: str, training: bool, dynamic: bool) -> Call:
    build, make_inputs = STEPS[name]
    model = build()
    return step_of(model, bytecap.optimize(model.forward, Counting(), dynamic=dynamic), make_inputs(), training)


def _processor_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def in_a_process(what: str, name: str, *flags: bool) -> Any:
    """What one of the functions above gives in a process of its own, with empty caches."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "STAGEFOLD_CACHE_DIR": directory}
        command = [sys.executable, __file__, "--own", what, name, *(str(int(flag)) for flag in flags)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def steady(name: str, training: bool) -> float:
    """The time of the program with symbols over that of the one without, at the same size."""
    build, make_inputs = STEPS[name]
    inputs = make_inputs()
    steps = []
    for dynamic in (False, True):
        model = build()
        steps.append(step_of(model, bytecap.optimize(model.forward, Counting(), dynamic=dynamic), inputs, training))
    for step in steps * 3:
        step()
    ratios = []
    for _ in range(ROUNDS):
        fixed, symbolic = (_once(step) for step in steps)
        ratios.append(symbolic / fixed)
    return statistics.median(ratios)


def _once(step: Call) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


# -- the page


def tables() -> Iterator[str]:
    yield "| calls | stagefold | torch.compile | greatest relative difference from eager |"
    yield "|---|---:|---:|---:|"
    for name in CASES:
        ours, theirs, error = compilations(name)
        yield f"| {name} | {ours} | {theirs} | {error:.0e} |"
    yield ""
    yield (
        "| step at one size | cold s: fixed | symbolic | ratio (goal 1.5) | steady ratio (goal 1.1) | capture s: fixed "
        "| symbolic | guards s | guards and symbols of the capture (goal 20%) |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name in STEPS:
        for training in (False, True):
            yield _costs(name, training)


def _costs(name: str, training: bool) -> str:
    first, first_symbolic = (in_a_process("cold", name, training, dynamic) for dynamic in (False, True))
    fixed, symbolic = in_a_process("captures", name, training)
    whole = symbolic["capture"] + symbolic["guards"]
    share = (symbolic["guards"] + max(0.0, symbolic["capture"] - fixed["capture"])) / whole
    cells = (
        f"{name}, {'training' if training else 'inference'}", f"{first:.2f}", f"{first_symbolic:.2f}",
        f"{first_symbolic / first:.2f}", f"{steady(name, training):.2f}", f"{fixed['capture']:.3f}",
        f"{symbolic['capture']:.3f}", f"{symbolic['guards']:.3f}", f"{share:.0%}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


HEAD = """# Sizes that change

Made by `python benchmarks/dynamic.py --page` (torch {torch}, Python {python}, {threads} thread, {machine}); its first
lines say what the columns mean. Small models: two layers of width 64, a ResNet of eight convolutions, and the networks
of `benchmarks/beside/networks.py`.
{load}

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--own", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.own:
        what, name, *flags = given.own
        print(json.dumps({"cold": cold, "captures": captures}[what](name, *(bool(int(flag)) for flag in flags))))
        return
    lines = []
    for line in tables():
        print(line, flush=True)
        lines.append(line)
    if given.page:
        facts = dict(torch=torch.__version__, python=platform.python_version(), machine=platform.machine(), threads=1)
        facts["load"] = f"The machine's load was {os.getloadavg()[2]:.0f} on {os.cpu_count()} cores."
        PAGE.write_text(HEAD.format(**facts) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
