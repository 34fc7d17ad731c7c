"""python -m loopir PRIM [-o LOOP] [--show] [--unfused]: read a Prim document, write a Loop document."""

from __future__ import annotations

import argparse
import sys

from loopir.pipeline import UNFUSED
from loopir.show import show
from loopir.stage import LoopIR, Options
from stagewire.codec import load, save
from stagewire.errors import StageError
from stagewire.prim import Prim


def main(arguments: list[str] | None = None) -> int:
    """Run the stage on files; the exit status is 1 for a document that is refused."""
    parser = argparse.ArgumentParser(prog="python -m loopir", description=__doc__)
    parser.add_argument("prim", help="a Prim document (.json or .msgpack)")
    parser.add_argument("-o", "--output", dest="loop", help="where to write the Loop document")
    parser.add_argument("--show", action="store_true", help="print kernels and decisions")
    parser.add_argument("--unfused", action="store_true", help="one kernel a prim")
    options = parser.parse_args(arguments)
    try:
        document = load(options.prim, expect="prim")
        assert isinstance(document, Prim)
        result = LoopIR().run(document, Options(passes=UNFUSED) if options.unfused else None)
    except StageError as error:
        print(error, file=sys.stderr)
        return 1
    if options.loop:
        save(result, options.loop)
    if options.show or not options.loop:
        print(show(result), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
