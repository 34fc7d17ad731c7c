"""`python -m primops FILE [-o OUT]`: a Grad document as a Prim document, printed or written.

`python -m stagewire ops prims` prints the prims (SPEC.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from primops.stage import Options, Primops
from stagewire.command import carry, guarded


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m primops", description=__doc__)
    parser.add_argument("file", help="a Grad document (.json, .msgpack or .txt)")
    parser.add_argument("-o", "--output", help="where to write the Prim document (by its suffix); else it is printed")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="TARGET", help="an ATen op left whole; repeatable"
    )
    given = parser.parse_args(arguments)
    return guarded(lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    options = Options(keep=tuple(given.keep))
    carry(given.file, "grad", lambda grad: Primops().run(grad, options), output=given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
