"""`python -m aotgrad CAPTURE [-o GRAD]`: read a Capture document, write a Grad document or print it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aotgrad.stage import AotGrad, Options
from stagewire.command import carry, guarded


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m aotgrad", description=__doc__)
    parser.add_argument("capture", help="a Capture document (.json, .msgpack or .txt)")
    parser.add_argument("-o", "--output", help="where to write the Grad document (by its suffix); else it is printed")
    parser.add_argument("--gradient-order", type=int, default=0, help="n: the program of the n-th gradient")
    given = parser.parse_args(arguments)
    return guarded(lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    options = Options(gradient_order=given.gradient_order)
    carry(given.capture, "capture", lambda capture: AotGrad().run(capture, options), output=given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
