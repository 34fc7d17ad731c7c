"""Does `stagefold blame` name the place of a mutant that changes a result: `python -m tools.mutants --blame`.

Programs are drawn (`stagefold.testing.samples`), of which those count that mean what eager computes while nothing is
planted. Those that evaluate the edit are run with the mutant, in a forked process, until one means something else.
There the blame has to name

    slot   that of the package that the mutant is planted in
    place  for a pass: a pass of that module, or one that uses it; else: one call or kernel, which evaluates the edit
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import aotgrad.passes
import loopir.pipeline
import primops.passes
from stagefold.bisector import Blame, blame_document, first_difference, results_of
from stagefold.options import Options
from stagefold.pipeline import Pipeline
from stagefold.reference import meaning
from stagefold.testing.conformance import captured
from stagefold.testing.programs import trials
from stagefold.testing.samples import sampled_programs
from stagewire.capture import Capture
from stagewire.errors import StageError
from stagewire.passes import name_of
from stagewire.testing.strategies import examples
from tools.mutants.edits import PROBE, ROOT, Mutant, planted, probed
from tools.mutants.runner import Changed, Codes, alive, codes_of, in_fork, read, write

SLOTS = ("aotgrad", "primops", "loopir", "codegen")
"""Slots by the name of the package; what a type rule of absint gets wrong shows in any of them."""
TRIED = 8
"""Programs that are run with a mutant, at most."""
PASSES = (
    *loopir.pipeline.PASSES, *loopir.pipeline.KERNEL_PASSES, *primops.passes.DEFAULT_PASSES,
    *aotgrad.passes.DEFAULT_PASSES,
)  # fmt: skip
PIPELINE = Pipeline.build(Options(cache=False))
Drawn = list[tuple[Capture, list[Any]]]


def blame_all(chosen: list[Mutant], state: Path, programs: int, symbols: bool) -> None:
    """Judge each mutant with `programs` drawn programs, add a row to `state`, and print the rates.

    symbols: with the programs of the conformance kit at symbolic sizes.
    """
    chosen = [mutant for mutant in chosen if _package(mutant) in SLOTS]
    for mutant in chosen:
        importlib.import_module(mutant.module)
    codes = codes_of({ROOT / mutant.file for mutant in chosen})
    drawn = symbolic_programs() if symbols else examples(sampled_programs(least=3, most=5), programs)
    files = {mutant.file: [one for one in chosen if one.file == mutant.file] for mutant in chosen}
    changed = [change for file, each in files.items() for change in alive(file, probed(file, each), codes)]
    right = in_fork(lambda _: _right_ones(drawn), 600)["right"]
    drawn = [one for one, is_right in zip(drawn, right, strict=True) if is_right]
    hits = in_fork(lambda _: {"hits": [sorted(_evaluated(capture, changed)) for capture, _ in drawn]}, 600)["hits"]
    for mutant in chosen:
        if f"blame {mutant.name}" not in read(state):
            reached = [one for one, names in zip(drawn, hits, strict=True) if mutant.name in names]
            found = in_fork(lambda _: _judge(mutant, reached[:TRIED], codes), 120)  # noqa: B023
            write(state, {"mutant": f"blame {mutant.name}", "area": mutant.area, "shown": False, **found})
            print(mutant.name, found, flush=True)
    report(chosen, state)


def symbolic_programs() -> Drawn:
    """The trials of the conformance kit whose graphs have symbolic sizes."""
    made = [(captured(trial, True), list(trial.inputs)) for trial in trials((torch.float32,))]
    return [(capture, inputs) for capture, inputs in made if capture.symbols]


def report(chosen: list[Mutant], state: Path) -> None:
    """Of the mutants that change a result: how many times the blame named the slot, and the place."""
    rows = [row for mutant in chosen if (row := read(state).get(f"blame {mutant.name}")) and row["shown"]]
    print(f"\n{'area':16} change a result   slot  place")
    for area in (*dict.fromkeys(mutant.area for mutant in chosen), "all"):
        counts = Counter[str]()
        for row in rows:
            if area in ("all", row["area"]):
                counts += Counter(shown=1, slot=int(row.get("slot", 0)), place=int(row.get("place", 0)))
        if shown := counts["shown"]:
            print(f"{area:16} {shown:15} {counts['slot'] / shown:6.1%} {counts['place'] / shown:6.1%}")


def _right_ones(drawn: Drawn) -> dict[str, list[bool]]:
    """Whether each program means what eager computes, as far as the blame sees."""
    return {"right": [_difference(capture, inputs, "loop") is None for capture, inputs in drawn]}


def _difference(capture: Capture, inputs: list[Any], until: str) -> str | None:
    expected = results_of(lambda: meaning(capture), inputs)
    return first_difference(results_of(lambda: meaning(PIPELINE.run(capture, until=until)), inputs), expected)


def _judge(mutant: Mutant, reached: Drawn, codes: Codes) -> dict[str, Any]:
    """Whether a program shows the mutant, and what the blame says of the first that does."""
    until = "program" if _package(mutant) == "codegen" else "loop"
    plain = [(function, function.__code__) for function, _ in alive(mutant.file, planted(mutant), codes)]
    for capture, inputs in reached:
        _plant(alive(mutant.file, planted(mutant), codes))
        if _difference(capture, inputs, until) is not None:
            blame = blame_document(capture, inputs, PIPELINE)
            _plant(plain)
            text = {"program": capture.code.name, "blame": str(blame)[:300]}
            return {"shown": True, **text, **_right(mutant, blame, codes)}
        _plant(plain)
    return {"shown": False, "programs": len(reached)}


def _right(mutant: Mutant, blame: Blame | None, codes: Codes) -> dict[str, bool]:
    if blame is None:
        return {"slot": False, "place": False}
    slot = blame.slot == _package(mutant)
    if ".passes." in mutant.module:
        return {"slot": slot, "place": slot and blame.culprit in _passes_of(mutant.module)}
    changed = alive(mutant.file, probed(mutant.file, [mutant]), codes)
    near = len(blame.calls) == 1 and blame.culprit is None
    return {"slot": slot, "place": slot and near and mutant.name in _evaluated(blame.document, changed)}


def _evaluated(document: Any, changed: Changed) -> set[str]:
    """The mutants whose edits the stages evaluate on a document."""
    hits: set[str] = set()
    setattr(builtins, PROBE, hits.add)
    plain = [(function, function.__code__) for function, _ in changed]
    _plant(changed)
    try:
        PIPELINE.run(document, until="program")
    except StageError:
        pass  # a program that the stages refuse evaluates what it does until then
    finally:
        _plant(plain)
    return hits


def _plant(changed: Changed) -> None:
    """Put code into functions, whose modules forget what they have cached."""
    for function, code in changed:
        function.__code__ = code
    for module in {function.__module__ for function, _ in changed}:
        for value in vars(sys.modules[module]).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def _package(mutant: Mutant) -> str:
    return mutant.module.partition(".")[0]


def _passes_of(module: str) -> set[str]:
    """The names of the passes of a module, and of those whose modules use it."""
    homes = [(name_of(step), getattr(step, "__module__", type(step).__module__)) for step in PASSES]
    return {name for name, home in homes if module in _used(sys.modules[home])}


def _used(module: ModuleType, seen: frozenset[str] = frozenset()) -> set[str]:
    """The modules among the passes of a package that one of them uses, itself too."""
    found = {module.__name__}
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and ".passes." in name and name not in seen | found:
            found |= _used(sys.modules[name], seen | found)
    return found
