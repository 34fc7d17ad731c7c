"""`stagefold` on the command line.

    stagefold show FILE                     print a document, or what a capsule or an artifact holds
    stagefold replay CAPSULE                compile again what it holds, and compare every document
    stagefold diff A B                      what two documents or capsules differ in, by structure
    stagefold run-stage SLOT IN OUT         carry a saved document through one stage
    stagefold run FILE INPUTS OUTPUTS       finish from any saved document and run it on tensors (torch.save files)
    stagefold blame FILE [INPUTS]           which stage, pass and call make a wrong result of a document or capsule
    stagefold report CAPSULE -o PAGE        one page from your lines to kernels; --timeline FILE for Perfetto
    stagefold reduce FILE --keep COMMAND    the smallest document for which a command still succeeds
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from stagefold.artifact.file_format import contents as artifact_contents
from stagefold.artifact.file_format import is_artifact
from stagefold.backend import StagefoldBackend
from stagefold.bisector import blame_document
from stagefold.capsule import contents as capsules
from stagefold.capsule.file_format import Capsule
from stagefold.capsule.inputs import inputs_of
from stagefold.capsule.replay import loader_of, pipeline_of, replay
from stagefold.errors import CommandFault
from stagefold.eviction import FOLDERS, entries_of, prune
from stagefold.options import SLOTS, Options, parse_options
from stagefold.pipeline import BOUNDARIES, Pipeline, resolve_stage, stopped_after
from stagefold.reduction import command, reduce, step_count
from stagefold.report.page import page
from stagefold.report.timeline import timeline
from stagefold.structural_diff import differences
from stagewire.codec import Document
from stagewire.command import guarded
from stagewire.errors import StageError
from stagewire.files import read_verified, write
from stagewire.printer import print_document
from stagewire.stage import Stage, expect

_Command = Callable[[argparse.Namespace], int]
_FORMS = {name: form for slot, (_, form) in BOUNDARIES.items() for name in (slot, form)}
"""The form of document that a slot makes, by the name of either."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    return guarded(lambda: _run_command(chosen))


def _run_command(chosen: argparse.Namespace) -> int:
    try:
        return chosen.run(chosen)
    except FileNotFoundError as error:
        raise CommandFault(f"there is no file {error.filename!r}") from None
    except IsADirectoryError as error:
        names = ", ".join(sorted(one.name for one in Path(error.filename).iterdir())[:3])
        raise CommandFault(f"{error.filename!r} is a directory", fix=f"Name a file, such as {names}.") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stagefold", description="Look at, replay and check compiled programs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: _Command, tells: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        made = commands.add_parser(name, parents=parents, help=tells)
        made.set_defaults(run=run)
        return made

    show = add("show", _show, "print a document, or what a capsule or an artifact holds")
    what = "documents, or what STAGEFOLD_TRACE, stagefold.record or export wrote"
    show.add_argument("files", type=Path, nargs="+", metavar="file", help=what)
    show.add_argument("--only", default="", metavar=_ONLY, help="documents of a capsule, or one graph of them")
    show.add_argument("-o", "--output", type=Path, help="write the one document there instead")

    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument("--stage", action="append", default=[], metavar="SLOT=NAME", help="a registered stage")
    settings.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="as for compile()")

    run_stage = add("run-stage", _run_stage, "carry a saved document through one stage", settings)
    run_stage.add_argument("slot", choices=SLOTS)
    run_stage.add_argument("input", type=Path)
    run_stage.add_argument("output", type=Path)
    run_stage.add_argument("--stop-after", metavar="PASS[:N]", help="have no pass after it (its N-th run) do anything")

    replayed = add("replay", _replay, "compile again what a capsule holds", settings)
    replayed.add_argument("file", type=Path)
    replayed.add_argument("--only", default="", metavar="RUN", help="a number or a part of a name")
    replayed.add_argument("--until", default="program", choices=_FORMS, help="the last slot, or the last form")
    replayed.add_argument("--print-after", metavar="PASS[:N]", help="print the document as it is after a pass")
    replayed.add_argument("--run", action="store_true", dest="compute", help="run it on its inputs, compare with eager")

    reported = add("report", _report, "one page from your lines to kernels")
    reported.add_argument("file", type=Path, help="what STAGEFOLD_TRACE or stagefold.record wrote")
    reported.add_argument("-o", "--output", type=Path, required=True, help="the HTML page")
    reported.add_argument("--timeline", type=Path, help="trace events as JSON, which ui.perfetto.dev opens")
    reported.add_argument("--measure", action="store_true", help="run the programs here for the seconds of kernels")

    diff = add("diff", _diff, "what two documents or capsules differ in, by structure")
    diff.add_argument("left", type=Path)
    diff.add_argument("right", type=Path)
    diff.add_argument("--only", default="", metavar=_ONLY, help="documents of capsules")

    run = add("run", _run, "finish from a saved document and run it on tensors", settings)
    run.add_argument("file", type=Path)
    run.add_argument("inputs", type=Path, help="a torch.save file with the list of graph inputs")
    run.add_argument("outputs", type=Path, help="where to torch.save the list of outputs")

    blamed = add("blame", _blame, "which stage, pass and call make a wrong result", settings)
    blamed.add_argument("file", type=Path, help="a document or a capsule")
    blamed.add_argument("inputs", type=Path, nargs="?", help="of a document: a torch.save file with its inputs")
    blamed.add_argument("-o", "--output", type=Path, help="a directory for the smallest document and its inputs")

    reduced = add("reduce", _reduce, "the smallest document for which a command still succeeds")
    reduced.add_argument("file", type=Path, help="a document, or a capsule")
    kept = "exits with 0 for a document to keep, whose file is {}, or its last word"
    reduced.add_argument("--keep", required=True, metavar="COMMAND", help=kept)
    reduced.add_argument("--only", default="", metavar=_ONLY, help="of a capsule, the document")
    reduced.add_argument("--timeout", type=float, metavar="SECONDS", help="for each run of the command")
    reduced.add_argument("-o", "--output", type=Path, help="write it there; it is printed otherwise")

    conform = add("conform", _conform, "does a registered stage keep the meaning of what it is given")
    conform.add_argument("slot", choices=("capture", *SLOTS, "load"))
    conform.add_argument("name", help="of an installed stage")
    conform.add_argument("--target", metavar="NAME", help="an installed target: the option codegen.target")
    conform.add_argument("--only", default="", metavar="WORD", help="trials with this in their name, none drawn")
    conform.add_argument("--drawn", type=int, default=100, help="so many drawn programs (100)")
    conform.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where inputs lie; cuda: none drawn")
    conform.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="as of compile, any number")

    add("doctor", _doctor, "what is installed and what is missing")

    cache = add("cache", _cache, "where the cache lies and how large it is")
    cache.add_argument("--prune", action="store_true", help="remove what is beyond its limits, and leftovers")
    cache.add_argument("--clear", action="store_true", help="delete it")
    return parser


_ONLY = "[RUN/]FORM[/GRAPH]"


def _show(chosen: argparse.Namespace) -> int:
    if chosen.output is not None and len(chosen.files) > 1:
        raise CommandFault(f"{len(chosen.files)} files, of which one document is to be written", fix="Name one file.")
    for file in chosen.files:
        _show_one(chosen, file)
    return 0


def _show_one(chosen: argparse.Namespace, file: Path) -> None:
    if capsules.is_capsule(file) and not chosen.only:
        print(artifact_contents(file) if is_artifact(file) else capsules.contents(Capsule(file)))
        return
    found = capsules.documents_of(file, chosen.only)
    if chosen.output is not None:
        if len(found) != 1:
            names = ", ".join(name for name, _, _ in found)
            raise CommandFault(f"{chosen.only!r} is {len(found)} documents", fix=f"Name one of them: {names}.")
        write(found[0][1], chosen.output)
        return
    for name, document, graph in found:
        if name:
            print(f"# {name}")
        print(capsules.print_part(document, graph), end="")


def _replay(chosen: argparse.Namespace) -> int:
    capsule = Capsule(chosen.file)
    options, stages = _changes(chosen)
    if chosen.print_after is not None:
        for run in capsule.chosen(chosen.only):
            print(f"# {run.member} after {chosen.print_after}")
            print(print_document(capsules.after_pass(capsule, run, chosen.print_after, options, stages)), end="")
        return 0
    others = wrong_results = 0
    for one in replay(capsule, only=chosen.only, until=_FORMS[chosen.until], options=options, stages=stages):
        others += not one.is_same
        word = "same" if one.is_same else f"was {one.recorded[:12]}" if one.recorded else "not recorded"
        print(f"{one.run.member:24} {one.form:10} {one.digest[:12]}  {word}")
        if chosen.compute and one.form == "program":
            wrong = capsules.computed_difference(capsule, one, stages)
            wrong_results += wrong is not None
            print(f"{'':24} {'results':10} {wrong or 'those of eager'}")
    return 1 if wrong_results or (others and not (options or stages)) else 0


def _report(chosen: argparse.Namespace) -> int:
    capsule = Capsule(chosen.file)
    text = page(capsule, measure=chosen.measure, cache=Options().cache_directory / "code")
    chosen.output.write_text(text, encoding="utf-8")
    if chosen.timeline is not None:
        chosen.timeline.write_bytes(timeline(capsule))
    return 0


def _diff(chosen: argparse.Namespace) -> int:
    count = 0
    for name, left, right in capsules.paired_documents(chosen.left, chosen.right, chosen.only):
        lines = differences(left, right)
        if lines:
            count += 1
            print(f"# {name}")
            print(*lines, sep="\n")
    if not count:
        print("the same")
    return 1 if count else 0


def _reduce(chosen: argparse.Namespace) -> int:
    document = capsules.one_document(chosen.file, chosen.only)
    found = reduce(document, command(chosen.keep, timeout=chosen.timeout))
    if chosen.output is None:
        print(print_document(found), end="")
    else:
        write(found, chosen.output)
        print(f"{step_count(document)} steps, {step_count(found)} of them left: {chosen.output}")
    return 0


def _run_stage(chosen: argparse.Namespace) -> int:
    document = read_verified(chosen.input)
    consumes, produces = BOUNDARIES[chosen.slot]
    expect(document, consumes, chosen.slot)
    pipeline = Pipeline.build(*_settings(chosen))
    _refuse_unused(chosen, pipeline, document, produces)

    def run() -> Document:
        return pipeline.run(document, until=produces)  # type: ignore[no-any-return]

    made = run() if chosen.stop_after is None else stopped_after(run, chosen.stop_after, f"slot {chosen.slot!r}")
    write(made, chosen.output)
    return 0


def _changes(chosen: argparse.Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """What `--option` and `--stage` say."""
    return {key: _value(text) for key, text in _pairs("--option", chosen.option)}, dict(_pairs("--stage", chosen.stage))


def _refuse_unused(chosen: argparse.Namespace, pipeline: Pipeline, document: Document, until: str = "program") -> None:
    """Raise `CommandFault` for what `--option` and `--stage` say of slots that do not run."""
    options, stages = _changes(chosen)
    run = {slot for slot, _, _ in pipeline.between(document, until)} | ({"load"} if until == "program" else set())
    unused = sorted(({key.partition(".")[0] for key in options if "." in key} | stages.keys()) - run)
    if unused:
        message = f"what is said of {', '.join(unused)} would change nothing: {', '.join(sorted(run))} alone run"
        raise CommandFault(message, fix="Leave it away, or start from an earlier document.")


def _settings(chosen: argparse.Namespace) -> tuple[Options, dict[str, str]]:
    options, stages = _changes(chosen)
    return parse_options(None, options), stages


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
    backend = StagefoldBackend(*_settings(chosen))
    document = read_verified(chosen.file)
    _refuse_unused(chosen, backend.pipeline, document)
    program = backend.pipeline.run(document)
    torch.save(_outputs(backend.load(program), _tensors(chosen.inputs)), chosen.outputs)
    return 0


def _blame(chosen: argparse.Namespace) -> int:
    found = next(filter(None, (blame_document(*case) for case in _cases(chosen))), None)
    if found is None:
        print("every document means the same")
        return 0
    print(found)
    if found.document is not None:
        print(print_document(found.document), end="")
    if chosen.output is not None:
        found.save(chosen.output)
    return 1


def _cases(chosen: argparse.Namespace) -> Iterator[tuple[Document, Sequence[Any], Pipeline, Stage | None]]:
    """Documents with inputs, stages and loader: the one that is given, or those of a capsule."""
    if not capsules.is_capsule(chosen.file):
        options, stages = _settings(chosen)
        loader = stages.pop("load", None)
        document, pipeline = read_verified(chosen.file), Pipeline.build(options, stages)
        if chosen.inputs is None:
            raise CommandFault("a document alone has no inputs", fix="Name the torch.save file, or give a capsule.")
        _refuse_unused(chosen, pipeline, document)
        yield document, _tensors(chosen.inputs), pipeline, None if loader is None else resolve_stage("load", loader)
        return
    capsule = Capsule(chosen.file)
    for run in capsule.runs:
        pipeline, loader = pipeline_of(run, *_changes(chosen))[0], loader_of(run, _changes(chosen)[1])
        yield capsule.document(run, "capture"), inputs_of(capsule, run), pipeline, loader


def _conform(chosen: argparse.Namespace) -> int:
    from stagefold.testing.conformance import conform

    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise CommandFault("torch sees no CUDA device", fix="Leave --device away to try the stage on a CPU.")
    count = 0
    tried: list[str] = []
    settings = {key: _value(text) for key, text in _pairs("--option", chosen.option)}
    if chosen.target is not None:
        settings["codegen.target"] = chosen.target
    more = {"only": chosen.only, "drawn": chosen.drawn, "device": chosen.device, "options": settings}
    for misfit in conform(chosen.slot, chosen.name, tell=tried.append, **more):
        count += 1
        print(misfit)
    what = f"is wrong in {count} of" if count else "keeps the meaning in"
    print(f"{chosen.name!r} {what} {len(tried)} trials")
    return 1 if count else 0


def _tensors(path: Path) -> list[Any]:
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
