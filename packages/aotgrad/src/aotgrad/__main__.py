"""`python -m aotgrad FILE [-o OUT]`: a Capture document as a Grad, or a Prim cut in two; written, or printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aotgrad.partition import PARTITIONERS
from aotgrad.partition.stage import PartitionStage
from aotgrad.stage import AotGrad
from stagewire.command import carry, guarded
from stagewire.grad import Grad
from stagewire.prim import Prim


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m aotgrad", description=__doc__)
    parser.add_argument("file", help="a Capture or a Prim document (.json, .msgpack or .txt)")
    parser.add_argument("-o", "--output", help="where to write the document (by its suffix); else it is printed")
    parser.add_argument("--gradient-order", type=int, default=0, help="n: the program of a Capture's n-th gradient")
    parser.add_argument("--partitioner", choices=sorted(PARTITIONERS), default="min_cut", help="of a Prim")
    given = parser.parse_args(arguments)

    def run(document: object) -> Grad | Prim:
        if isinstance(document, Prim):
            return PartitionStage().run(document, PartitionStage.Options(given.partitioner))
        return AotGrad().run(document, AotGrad.Options(gradient_order=given.gradient_order))  # type: ignore[arg-type]

    def command() -> int:
        carry(given.file, None, run, output=given.output)
        return 0

    return guarded(command)


if __name__ == "__main__":
    sys.exit(main())
