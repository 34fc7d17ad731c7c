"""python -m loopir PRIM [-o LOOP] [--show] [--unfused]: read a Prim document, write a Loop document."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from loopir.pipeline import UNFUSED
from loopir.stage import LoopIR, Options
from stagewire.command import carry, guarded
from stagewire.loop import Extern, Kernel, LoopGraph


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage on files; the exit status is 1 for a document that is refused."""
    parser = argparse.ArgumentParser(prog="python -m loopir", description=__doc__)
    parser.add_argument("prim", help="a Prim document that is cut (.json, .msgpack or .txt)")
    parser.add_argument("-o", "--output", metavar="LOOP", help="where to write the Loop document (by its suffix)")
    parser.add_argument("--show", action="store_true", help="print the document with every decision, also with -o")
    parser.add_argument("--unfused", action="store_true", help="one kernel a prim")
    given = parser.parse_args(arguments)
    return guarded(lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    options = Options(passes=UNFUSED) if given.unfused else None
    show = given.show or given.output is None
    loop = carry(given.prim, "prim", lambda prim: LoopIR().run(prim, options), output=given.output, show=show)
    print(summary("forward", loop.forward), file=sys.stderr)
    if loop.backward is not None:
        print(summary("backward", loop.backward), file=sys.stderr)
    return 0


def summary(name: str, graph: LoopGraph) -> str:
    """Counts of what one direction does."""
    kernels = sum(isinstance(step, Kernel) for step in graph.steps)
    externs = sum(isinstance(step, Extern) for step in graph.steps)
    fused = sum(decision.action == "fused" for decision in graph.decisions)
    return f"{name}: {kernels} kernels, {externs} calls of ATen, {fused} fusions"


if __name__ == "__main__":
    sys.exit(main())
