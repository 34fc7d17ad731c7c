"""`stagefold` on the command line.

    stagefold show FILE                     print a document
    stagefold run-stage SLOT IN OUT         carry a saved document through one stage
    stagefold run FILE INPUTS OUTPUTS       finish from any saved document and run it on tensors (torch.save files)
    stagefold blame FILE INPUTS             which stage, pass and call make a wrong result of a saved document
    stagefold conform SLOT NAME             does a registered stage keep the meaning of what it is given
    stagefold doctor                        what is installed, which compiler, what is missing
    stagefold cache [--prune | --clear]     where the cache lies, how large it is and may be

`--stage SLOT=NAME` puts a registered stage into a slot, `--option KEY=VALUE` sets what `compile(options=...)` takes.

Exit codes: 0 done, 1 a coded error (printed), 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import ast
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stagefold.errors import CommandFault
from stagefold.eviction import FOLDERS, entries_of, prune
from stagefold.options import SLOTS, Options, parse_options
from stagewire.command import guarded
from stagewire.errors import StageError
from stagewire.files import read, read_verified, write
from stagewire.passes import PassRun, first_passes, watched_passes
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

    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument("--stage", action="append", default=[], metavar="SLOT=NAME", help="a registered stage")
    settings.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="as for compile()")

    run_stage = commands.add_parser("run-stage", parents=[settings], help="carry a saved document through one stage")
    run_stage.add_argument("slot", choices=SLOTS)
    run_stage.add_argument("input", type=Path)
    run_stage.add_argument("output", type=Path)
    run_stage.add_argument("--stop-after", metavar="PASS[:N]", help="have no pass after it (its N-th run) do anything")
    run_stage.set_defaults(run=_run_stage)

    run = commands.add_parser("run", parents=[settings], help="finish from a saved document and run it on tensors")
    run.add_argument("file", type=Path)
    run.add_argument("inputs", type=Path, help="a torch.save file with the list of graph inputs")
    run.add_argument("outputs", type=Path, help="where to torch.save the list of outputs")
    run.set_defaults(run=_run)

    blamed = commands.add_parser("blame", parents=[settings], help="which stage, pass and call make a wrong result")
    blamed.add_argument("file", type=Path)
    blamed.add_argument("inputs", type=Path, help="a torch.save file with the list of graph inputs")
    blamed.add_argument("-o", "--output", type=Path, help="a directory for the smallest document and its inputs")
    blamed.set_defaults(run=_blame)

    conform = commands.add_parser("conform", help="does a registered stage keep the meaning of what it is given")
    conform.add_argument("slot", choices=SLOTS)
    conform.add_argument("name", help="of an installed stage")
    conform.add_argument("--only", default="", metavar="WORD", help="trials with this in their name")
    conform.add_argument("--drawn", type=int, default=100, help="so many drawn programs")
    conform.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    conform.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="as of compile, any number")
    conform.set_defaults(run=_conform)

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
    pipeline = Pipeline.build(*_settings(chosen))
    if chosen.stop_after is None:
        write(pipeline.run(document, until=produces), chosen.output)
        return 0
    name, _, number = chosen.stop_after.partition(":")
    runs = _pass_names(lambda: pipeline.run(document, until=produces))
    places = [place for place, known in enumerate(runs, 1) if known == name]
    if not places or not (number or "1").isdecimal() or not 0 < int(number or 1) <= len(places):
        counts = ", ".join(f"{known}:{count}" for known, count in Counter(runs).items())
        raise CommandFault(f"slot {chosen.slot!r} runs no pass {chosen.stop_after!r}", fix=f"Its runs: {counts}.")
    with first_passes(places[int(number or 1) - 1]):
        write(pipeline.run(document, until=produces), chosen.output)
    return 0


def _pass_names(run: Callable[[], object]) -> list[str]:
    """The names of the passes that run, in order."""
    names: list[str] = []

    def note(one: PassRun[Any]) -> Any:
        names.append(one.name)
        return one.after

    with watched_passes(note):
        run()
    return names


def _settings(chosen: argparse.Namespace) -> tuple[Options, dict[str, str]]:
    """What `--option` and `--stage` say."""
    options = {key: _value(text) for key, text in _pairs("--option", chosen.option)}
    return parse_options(None, options), dict(_pairs("--stage", chosen.stage))


def _pairs(argument: str, given: list[str]) -> list[tuple[str, str]]:
    for one in given:
        if "=" not in one:
            raise CommandFault(f"{argument} {one!r} has no '='", fix=f"Write {argument} NAME=VALUE.")
    return [(one.partition("=")[0], one.partition("=")[2]) for one in given]


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):  # a word
        return text


def _run(chosen: argparse.Namespace) -> int:
    import torch

    from stagefold.backend import StagefoldBackend

    backend = StagefoldBackend(*_settings(chosen))
    document = read_verified(chosen.file)
    program = backend.pipeline.run(document)
    torch.save(_outputs(backend.load(program), _tensors(chosen.inputs)), chosen.outputs)
    return 0


def _blame(chosen: argparse.Namespace) -> int:
    from stagefold.bisector import blame_document
    from stagefold.pipeline import Pipeline

    document = read_verified(chosen.file)
    found = blame_document(document, _tensors(chosen.inputs), Pipeline.build(*_settings(chosen)))
    if found is None:
        print("every document means the same")
        return 0
    print(found)
    print(print_document(found.document), end="")
    if chosen.output is not None:
        found.save(chosen.output)
    return 1


def _setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as Python writes it, or else a text.

    >>> _setting("codegen.target=numpy"), _setting("codegen.depthwise=False")
    (('codegen.target', 'numpy'), ('codegen.depthwise', False))
    """
    key, _, value = text.partition("=")
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return key, value


def _conform(chosen: argparse.Namespace) -> int:
    from stagefold.testing.conformance import conform

    count = 0
    settings = dict(map(_setting, chosen.option))
    more = {"only": chosen.only, "drawn": chosen.drawn, "device": chosen.device, "options": settings}
    for misfit in conform(chosen.slot, chosen.name, **more):
        count += 1
        print(f"{misfit.trial}: {misfit.message}")
        if misfit.blame is not None:
            print(f"  {misfit.blame}")
    print(f"{count} trials in which {chosen.name!r} is wrong" if count else f"{chosen.name!r} keeps the meaning")
    return 1 if count else 0


def _tensors(path: Path) -> list[Any]:
    import torch

    try:
        return list(torch.load(path, weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CommandFault(
            f"{path} holds no tensors: {reason}", fix="Write it with torch.save([tensor, ...], path)."
        ) from error


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
