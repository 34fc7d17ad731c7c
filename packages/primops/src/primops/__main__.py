"""`python -m primops FILE [-o OUT]`: a Grad document as a Prim document, printed or written.

`python -m primops opset` and `python -m primops spec` print the prim set as JSON and as SPEC.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from primops.opset import encode_opset
from primops.spec import specification
from primops.stage import Options, Primops
from stagewire.command import carry, guarded

PRINTED = {"opset": lambda: encode_opset().decode(), "spec": specification}
"""What `python -m primops NAME` prints, by name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m primops", description=__doc__)
    parser.add_argument("file", help="a Grad document (.json, .msgpack or .txt); or 'opset' or 'spec'")
    parser.add_argument("-o", "--output", help="where to write the Prim document (by its suffix); else it is printed")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="TARGET", help="an ATen op left whole; repeatable"
    )
    given = parser.parse_args(arguments)
    return guarded(lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    if given.file in PRINTED:
        sys.stdout.write(PRINTED[given.file]())
        return 0
    options = Options(keep=tuple(given.keep))
    carry(given.file, "grad", lambda grad: Primops().run(grad, options), output=given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
