"""`python -m aotgrad CAPTURE GRAD [--save-everything] [--keep-joint]`: read a Capture document, write a Grad document."""

from __future__ import annotations

import argparse

from stagewire.codec import load, save

from aotgrad.partition import MinCut, save_everything
from aotgrad.stage import AotGrad, Options


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m aotgrad", description=__doc__)
    parser.add_argument("capture", help="a Capture document (.json, or MessagePack)")
    parser.add_argument("grad", help="where to write the Grad document; .json for JSON")
    parser.add_argument("--save-everything", action="store_true", help="recompute nothing in the backward")
    parser.add_argument("--keep-joint", action="store_true", help="keep the joint graph, for double backward")
    given = parser.parse_args()
    options = Options(
        partitioner=save_everything if given.save_everything else MinCut(),
        keep_joint=given.keep_joint,
    )
    save(AotGrad().run(load(given.capture, "capture"), options), given.grad)


if __name__ == "__main__":
    main()
