"""`replay(capsule)`: compile again what a capsule holds, here, and tell which documents are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from stagefold.capsule.file_format import Capsule, Run, StageRow
from stagefold.capsule.settings import as_value, parsed
from stagefold.errors import BadCapsule
from stagefold.freezing import frozen_programs
from stagefold.pipeline import ENDS, Event, Pipeline, StageLike, default_stage, fields_of, resolve_stage
from stagewire.capture import Capture
from stagewire.codec import Document, form_of
from stagewire.digest import digest
from stagewire.stage import Stage
from stagewire.verify import verify


@dataclasses.dataclass(frozen=True)
class Replayed:
    """One document that was made again. form: its name in the capsule. recorded: the digest there, if it has one."""

    run: Run
    form: str
    document: Document
    recorded: str | None

    @property
    def digest(self) -> str:
        return digest(self.document)

    @property
    def is_same(self) -> bool:
        return self.digest == self.recorded


def replay(
    capsule: Capsule,
    *,
    only: str = "",
    until: str = "program",
    options: Mapping[str, Any] | None = None,
    stages: Mapping[str, StageLike] | None = None,
) -> Iterator[Replayed]:
    """The documents behind the capture of each run, up to the form `until`, made with the recorded settings.

    only: a number or a part of the name of a run. options, stages: changes, as `compile` takes them. What captured is
    not asked again: its document is what is replayed.

    Errors: `BadCapsule` for settings that cannot be had here, and those of the stages.
    """
    for run in capsule.chosen(only):
        pipeline, freeze = pipeline_of(run, options, stages)
        capture = capsule.document(run, "capture")
        assert isinstance(capture, Capture)
        verify(capture)
        made: dict[str, Document] = {}

        def observe(event: Event, made: dict[str, Document] = made) -> None:
            made[numbered(event.document, made)] = event.document

        if freeze and until == "program":
            frozen_programs(pipeline, capture, observe)
        else:
            pipeline.run(capture, until=until, observe=observe)
        yield from (Replayed(run, form, one, run.digests.get(form)) for form, one in made.items())


def numbered(document: Document, names: Mapping[str, object]) -> str:
    """The name of a document behind others of a run: the second of a form (a program in two parts) is "prim.2"."""
    form = form_of(document)
    count = sum(name.partition(".")[0] == form for name in names)
    return f"{form}.{count + 1}" if count else form


def pipeline_of(
    run: Run, options: Mapping[str, Any] | None = None, stages: Mapping[str, StageLike] | None = None
) -> tuple[Pipeline, bool]:
    """The stages that a run was compiled with, with changes, and whether its weights were frozen."""
    changed = dict(options or {})
    slots = {slot: stage for slot, stage in (stages or {}).items() if slot != "load"}
    for row in run.stages:
        if row.slot not in (*ENDS, *slots) and row.registered != default_stage(row.slot).name:
            slots[row.slot] = _registered(run, row)
    settings = parsed({key: one for key, one in run.options.items() if _is_known(key, stages or {})}, changed)
    pipeline = Pipeline.build(settings, slots)
    told = {row.slot: row.told for row in run.stages}
    rows = []
    for slot, stage, chosen in pipeline.stages:
        names = fields_of(chosen)
        facts = {
            name: as_value(data, f"{slot}.{name}")
            for name, data in told.get(slot, {}).items()
            if name in names and f"{slot}.{name}" not in changed
        }
        rows.append((slot, stage, dataclasses.replace(chosen, **facts) if facts else chosen))
    return dataclasses.replace(pipeline, stages=tuple(rows)), settings.freeze


def loader_of(run: Run, stages: Mapping[str, StageLike] | None = None) -> Stage | None:
    """What stood in slot "load", or stands there now; None for codegen's own loader."""
    if "load" in (stages or {}):
        return resolve_stage("load", stages["load"])  # type: ignore[index]
    row = next((row for row in run.stages if row.slot == "load"), None)
    return None if row is None else resolve_stage("load", _registered(run, row))


def _registered(run: Run, row: StageRow) -> str:
    """The name of a stage that can be found here."""
    if row.registered is None:
        raise BadCapsule(
            f"slot {row.slot!r} of {run.member} had {row.name!r}, an object of the recorded program",
            fix=f"Give a stage: --stage {row.slot}=NAME, or stages= of stagefold.replay.",
        )
    return row.registered


def _is_known(key: str, stages: Mapping[str, StageLike]) -> bool:
    """False for an option of a recorded stage that is replaced by one without such an option."""
    slot, dot, field = key.partition(".")
    return (
        not dot or slot not in stages or field in fields_of(getattr(resolve_stage(slot, stages[slot]), "Options", None))
    )
