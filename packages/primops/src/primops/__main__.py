"""`python -m primops FILE [-o OUT]`: a Grad document as a Prim document, printed or written.

`python -m primops opset` and `python -m primops spec` print opset.json and SPEC.md.
"""

from __future__ import annotations

import argparse
import sys

from primops.opset import encode_opset
from primops.spec import specification
from primops.stage import Options, Primops
from stagewire.codec import load, save
from stagewire.errors import StageError
from stagewire.printer import print_document


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m primops", description=__doc__)
    parser.add_argument("file", help="a Grad document (.json, or MessagePack); or 'opset' or 'spec'")
    parser.add_argument("-o", "--output", help="where to write the Prim document (.json for JSON); default: print it")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="TARGET", help="an ATen op left whole; repeatable"
    )
    given = parser.parse_args(arguments)
    if given.file in ("opset", "spec"):
        sys.stdout.write(encode_opset().decode() if given.file == "opset" else specification())
        return 0
    try:
        document = Primops().run(load(given.file, "grad"), Options(keep=tuple(given.keep)))  # type: ignore[arg-type]
    except StageError as error:
        print(error, file=sys.stderr)
        return 1
    if given.output:
        save(document, given.output)
    else:
        print(print_document(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
