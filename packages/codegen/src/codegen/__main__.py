"""python -m codegen LOOP [-o PROGRAM] [--sources DIRECTORY] [--show] [--target NAME] [--isa LEVEL]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from codegen.cpp.target import Isa
from codegen.stage import Codegen, Options
from codegen.targets import find
from stagewire.command import carry, guarded
from stagewire.program import CallExtern, Launch, Program, Unit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage on files; the exit status is 1 for a document that is refused."""
    parser = argparse.ArgumentParser(prog="python -m codegen", description=__doc__)
    parser.add_argument("loop", help="a Loop document (.json, .msgpack or .txt)")
    parser.add_argument("-o", "--output", metavar="PROGRAM", help="where to write the Program document (by its suffix)")
    parser.add_argument("--sources", metavar="DIRECTORY", type=Path, help="where to write the kernels as source files")
    parser.add_argument("--show", action="store_true", help="print the document, also with -o or --sources")
    parser.add_argument("--target", default="auto", help="without it, the target follows the devices")
    parser.add_argument("--isa", choices=get_args(Isa), default="native", help="what the C++ is compiled for")
    given = parser.parse_args(arguments)
    return guarded(lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    options = Options(target=given.target, isa=given.isa)
    show = given.show or not (given.output or given.sources)
    program = carry(given.loop, "loop", lambda loop: Codegen().run(loop, options), output=given.output, show=show)
    if given.sources:
        write_sources(program, given.sources)
    for name, unit in directions(program):
        print(summary(name, unit), file=sys.stderr)
    return 0


def directions(program: Program) -> list[tuple[str, Unit]]:
    """The units by name."""
    found = [("forward", program.forward)]
    return found if program.backward is None else [*found, ("backward", program.backward)]


def write_sources(program: Program, directory: Path) -> None:
    """One file for each direction that has kernels."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, unit in directions(program):
        if unit.source:
            (directory / f"{name}.{find(unit.target).suffix}").write_text(unit.source)
        if unit.host_source:
            (directory / f"{name}_host.cpp").write_text(unit.host_source)


def summary(name: str, unit: Unit) -> str:
    """Counts of what one direction holds."""
    launches = sum(isinstance(one, Launch) for one in unit.instructions)
    calls = sum(isinstance(one, CallExtern) for one in unit.instructions)
    lines = unit.source.count("\n")
    return f"{name}: {len(unit.kernels)} kernels launched {launches} times, {calls} calls of ATen, {lines} lines"


if __name__ == "__main__":
    sys.exit(main())
