"""`python -m aotgrad CAPTURE [-o GRAD]`: read a Capture document, write a Grad document or print it."""

from __future__ import annotations

import argparse
import sys

from aotgrad.partition import PARTITIONERS
from aotgrad.stage import AotGrad, Options
from stagewire.codec import load, save
from stagewire.errors import StageError
from stagewire.printer import print_document


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m aotgrad", description=__doc__)
    parser.add_argument("capture", help="a Capture document (.json, or MessagePack)")
    parser.add_argument("-o", "--output", help="where to write the Grad document (.json, or MessagePack); else printed")
    parser.add_argument("--partitioner", choices=sorted(PARTITIONERS), default=Options.partitioner)
    parser.add_argument("--keep-joint", action="store_true", help="keep the joint graph, for double backward")
    given = parser.parse_args()
    try:
        document = load(given.capture, "capture")
        grad = AotGrad().run(document, Options(partitioner=given.partitioner, keep_joint=given.keep_joint))
    except (StageError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if given.output:
        save(grad, given.output)
    else:
        print(print_document(grad))
    return 0


if __name__ == "__main__":
    sys.exit(main())
