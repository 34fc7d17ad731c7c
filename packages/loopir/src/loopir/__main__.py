"""python -m loopir PRIM [-o LOOP] [--show] [--unfused]: read a Prim document, write a Loop document."""

from __future__ import annotations

import argparse
import sys

from loopir.pipeline import UNFUSED
from loopir.stage import LoopIR, Options
from stagewire.codec import load, save
from stagewire.errors import StageError
from stagewire.loop import Extern, Kernel, LoopGraph
from stagewire.prim import Prim
from stagewire.printer import print_document


def main(arguments: list[str] | None = None) -> int:
    """Run the stage on files; the exit status is 1 for a document that is refused."""
    parser = argparse.ArgumentParser(prog="python -m loopir", description=__doc__)
    parser.add_argument("prim", help="a Prim document (.json or .msgpack)")
    parser.add_argument("-o", "--output", metavar="LOOP", help="where to write the Loop document")
    parser.add_argument("--show", action="store_true", help="print the document with every decision, also with -o")
    parser.add_argument("--unfused", action="store_true", help="one kernel a prim")
    options = parser.parse_args(arguments)
    try:
        document = load(options.prim, expect="prim")
        assert isinstance(document, Prim)
        result = LoopIR().run(document, Options(passes=UNFUSED) if options.unfused else None)
    except StageError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.prim}: {error.strerror}", file=sys.stderr)
        return 1
    if options.output:
        save(result, options.output)
    if options.show or not options.output:
        print(print_document(result), end="")
    print(summary("forward", result.forward), file=sys.stderr)
    if result.backward is not None:
        print(summary("backward", result.backward), file=sys.stderr)
    return 0


def summary(name: str, graph: LoopGraph) -> str:
    """Counts of what one direction does."""
    kernels = sum(isinstance(step, Kernel) for step in graph.steps)
    externs = sum(isinstance(step, Extern) for step in graph.steps)
    fused = sum(decision.action == "fused" for decision in graph.decisions)
    return f"{name}: {kernels} kernels, {externs} calls of ATen, {fused} fusions"


if __name__ == "__main__":
    sys.exit(main())
