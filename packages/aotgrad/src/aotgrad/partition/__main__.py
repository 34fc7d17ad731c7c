"""`python -m aotgrad.partition PRIM [-o CUT]`: read a Prim document, write it cut in two or print it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aotgrad.partition import PARTITIONERS
from aotgrad.partition.stage import Options, PartitionStage
from stagewire.command import carry, guarded


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m aotgrad.partition", description=__doc__)
    parser.add_argument("prim", help="a Prim document (.json, .msgpack or .txt)")
    parser.add_argument("-o", "--output", help="where to write the cut document (by its suffix); else it is printed")
    parser.add_argument("--partitioner", choices=sorted(PARTITIONERS), default=Options.partitioner)
    parser.add_argument("--memory-budget", type=float, default=Options.memory_budget, help="from 0 to 1")
    given = parser.parse_args(arguments)
    options = Options(given.partitioner, given.memory_budget)

    def run() -> int:
        carry(given.prim, "prim", lambda prim: PartitionStage().run(prim, options), output=given.output)
        return 0

    return guarded(run)


if __name__ == "__main__":
    sys.exit(main())
