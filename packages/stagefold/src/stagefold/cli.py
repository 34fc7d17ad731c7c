"""`stagefold` on the command line.

    stagefold show FILE                     print a document
    stagefold run-stage SLOT IN OUT         carry a saved document through one stage
    stagefold run FILE INPUTS OUTPUTS       finish from any saved document and run it on tensors (torch.save files)
    stagefold doctor                        what is installed, which compiler, what is missing
    stagefold cache [--prune | --clear]     where the cache lies, how large it is and may be

Exit codes: 0 done, 1 a coded error (printed), 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stagefold.errors import CommandFault
from stagefold.eviction import FOLDERS, entries_of, prune
from stagefold.options import SLOTS, Options
from stagewire.command import guarded
from stagewire.errors import StageError
from stagewire.files import read, read_verified, write
from stagewire.printer import print_document
from stagewire.stage import expect


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    return guarded(lambda: _run_command(chosen))


def _run_command(chosen: argparse.Namespace) -> int:
    try:
        return chosen.run(chosen)
    except FileNotFoundError as error:
        raise CommandFault(f"there is no file {error.filename!r}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stagefold", description="Look at, replay and check compiled programs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    show = commands.add_parser("show", help="print a document")
    show.add_argument("file", type=Path)
    show.set_defaults(run=_show)

    run_stage = commands.add_parser("run-stage", help="carry a saved document through one stage")
    run_stage.add_argument("slot", choices=SLOTS)
    run_stage.add_argument("input", type=Path)
    run_stage.add_argument("output", type=Path)
    run_stage.set_defaults(run=_run_stage)

    run = commands.add_parser("run", help="finish from a saved document and run it on tensors")
    run.add_argument("file", type=Path)
    run.add_argument("inputs", type=Path, help="a torch.save file with the list of graph inputs")
    run.add_argument("outputs", type=Path, help="where to torch.save the list of outputs")
    run.set_defaults(run=_run)

    doctor = commands.add_parser("doctor", help="what is installed and what is missing")
    doctor.set_defaults(run=_doctor)

    cache = commands.add_parser("cache", help="where the cache lies and how large it is")
    cache.add_argument("--prune", action="store_true", help="remove what is beyond its limits, and leftovers")
    cache.add_argument("--clear", action="store_true", help="delete it")
    cache.set_defaults(run=_cache)
    return parser


def _show(chosen: argparse.Namespace) -> int:
    print(print_document(read(chosen.file)), end="")
    return 0


def _run_stage(chosen: argparse.Namespace) -> int:
    from stagefold.pipeline import BOUNDARIES, Pipeline

    document = read_verified(chosen.input)
    consumes, produces = BOUNDARIES[chosen.slot]
    expect(document, consumes, chosen.slot)
    write(Pipeline.build(Options()).run(document, until=produces), chosen.output)
    return 0


def _run(chosen: argparse.Namespace) -> int:
    import torch

    from stagefold.backend import StagefoldBackend

    backend = StagefoldBackend(Options())
    document = read_verified(chosen.file)
    program = backend.pipeline.run(document)
    try:
        inputs = torch.load(chosen.inputs, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CommandFault(
            f"{chosen.inputs} holds no tensors: {reason}", fix="Write it with torch.save([tensor, ...], path)."
        ) from error
    torch.save(_outputs(backend.load(program), inputs), chosen.outputs)
    return 0


def _outputs(run: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """What a program gives. A document may call an operator in a way that torch refuses."""
    try:
        return list(run(*inputs))
    except StageError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise CommandFault(
            f"the program raised {type(error).__name__}: {error}",
            fix="Give it inputs for which its calls are right, or make the document again from the program.",
        ) from error


def _doctor(chosen: argparse.Namespace) -> int:
    from stagefold.doctor import findings

    rows = findings()
    for row in rows:
        print(f"{'ok  ' if row.good else 'MISS'} {row.what}: {row.detail}")
    return 0 if all(row.good or row.optional for row in rows) else 1


def _cache(chosen: argparse.Namespace) -> int:
    options = Options()
    directory, limits = options.cache_directory, options.cache_limits
    entries = entries_of(directory)
    print(f"{directory}: {len(entries)} entries, {_megabytes(sum(entry.size for entry in entries))}")
    for folder in FOLDERS:
        of_folder = [entry.size for entry in entries if directory / folder in entry.paths[0].parents]
        print(f"  {folder}: {len(of_folder)} entries, {_megabytes(sum(of_folder))}")
    print(f"  limits: {_megabytes(limits.size)}, {limits.days:g} days since the last use")
    if chosen.prune:
        count, size = prune(directory, limits)
        print(f"removed {count} entries, {_megabytes(size)}")
    if chosen.clear and directory.exists():
        shutil.rmtree(directory)
        print("cleared")
    return 0


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
