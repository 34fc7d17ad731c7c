"""Run generated C++ under the address and undefined-behaviour sanitizers: drawn kernels, programs on hostile operands.

    python tools/sanitize_kernels.py [--examples N] [--isa LEVEL ...] [--programs [NAME ...]]

Kernels and executor are compiled with codegen's `Options(sanitize=("address", "undefined"))`; a process of its own has
gcc's runtimes loaded first, so that each tensor's memory lies between zones that nothing may touch. The "reference"
executor gives each buffer memory of its own; the "fast" one shares an arena, of which only the ends are watched. A
report, a difference from the meaning of the kernel or from eager, and an error that eager does not raise end it with a
exit code that is not 0. (That what eager refuses is refused is what `nox -s refusals` looks at.)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("libasan.so", "libubsan.so")
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
SANITIZERS = ("address", "undefined")


def environment() -> dict[str, str]:
    """That of a process that has the runtimes loaded first."""
    paths = [
        subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in LIBRARIES
    ]
    return os.environ | {
        "LD_PRELOAD": " ".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",  # the interpreter keeps what it has at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
    }


def draw_kernels(examples: int, levels: Sequence[str], directory: str) -> None:
    """Kernels drawn by codegen's strategies, for each instruction set; they mean what the reference says."""
    from codegen.testing.strategies import indirect_graphs, masked_graphs, pointwise_graphs, reduction_graphs

    kinds = {"pointwise": pointwise_graphs(), "reductions": reduction_graphs(), "indirect": indirect_graphs(),
             "masked": masked_graphs()}  # fmt: skip
    for isa in levels:
        for name, graphs in kinds.items():
            kernel_check(graphs, examples, isa, directory)()
            print(f"{isa}: {examples} {name} kernels", flush=True)


def kernel_check(graphs: Any, examples: int, isa: str, directory: str) -> Callable[[], None]:
    """The property of drawn kernels, as a function that draws them."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    from codegen import Options, load
    from codegen.stage import emit
    from codegen.testing.compare import assert_same
    from codegen.testing.reference import run_graph, span
    from codegen.testing.strategies import sample_inputs

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
              database=None, phases=(Phase.generate,))  # fmt: skip
    @given(graphs, st.integers(0, 5), st.sampled_from((1, 1 << 40)), st.sampled_from(("reference", "fast")))
    def check(graph: Any, seed: int, threshold: int, executor: Any) -> None:
        inputs = sample_inputs(graph, seed)
        types = {buffer.name: buffer.type for buffer in graph.buffers}
        options = Options(parallel_threshold=threshold, isa=isa, sanitize=SANITIZERS)
        run = load(emit(graph, options), directory, executor=executor)
        found = run(*(inputs[name].as_strided(types[name].shape, types[name].stride) for name in graph.inputs))
        expected = run_graph(graph, inputs)
        for output, tensor in zip(graph.outputs, found, strict=True):
            assert_same(tensor.as_strided((span(types[output.name]),), (1,)), expected[output.name])

    return check


def run_programs(levels: Sequence[str], names: Sequence[str] | None, directory: str) -> None:
    """Programs on hostile operands, all or those of some names, compiled as a whole; results are eager's."""
    sys.path.insert(0, str(ROOT))
    from integration_tests.hostile_programs import PROGRAMS, check

    chosen = [program for program in PROGRAMS if names is None or program.name in names]
    for isa in levels:
        options = {"codegen.isa": isa, "codegen.sanitize": SANITIZERS, "cache_dir": directory}
        count = sum(check(program, options) for program in chosen)
        print(f"{isa}: {count} calls of {len(chosen)} programs", flush=True)


def levels_here() -> list[str]:
    """The levels of x86-64 that this machine has, and the lowest one alone where it runs no others."""
    from codegen.cpp.target import features, features_of

    return [level for level in LEVELS if features_of(level) <= features()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=60, help="drawn kernels of each kind (default: 60)")
    parser.add_argument("--isa", nargs="+", choices=LEVELS, help="default: all that this machine has")
    parser.add_argument("--programs", nargs="*", metavar="NAME", help="of integration_tests/hostile_programs.py")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if not chosen.inside:
        command = [sys.executable, __file__, "--inside", *sys.argv[1:]]
        return subprocess.run(command, env=environment()).returncode
    levels = chosen.isa or levels_here()
    with tempfile.TemporaryDirectory() as directory:
        draw_kernels(chosen.examples, levels, directory)
        if chosen.programs is None or chosen.programs:
            run_programs(levels, chosen.programs, directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
