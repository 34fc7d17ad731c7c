"""The stages in order, and the runs through them.

    capture -> aotgrad -> grad -> primops -> prim -> partition -> cut -> loopir -> loop -> codegen -> program

Every boundary is a document of this form (`stagewire.codec.form_of`; "cut" is a `Prim` in two parts): `Pipeline.run`
can start at any of them and stop at any of them.

A slot is foreign when its stage is none of ours, or has options with code of somebody else's (a pass, a partitioner, a
decomposition). What a foreign slot is given and what it makes is verified; what it should not have made is saved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import importlib
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_type_hints

import stagewire
from stagefold.cache import fingerprint
from stagefold.errors import BadOption, BadStage, BrokenDocument, CommandFault, NoEffect, UnknownStage, UnusedStages
from stagefold.options import SLOTS, Options, checked
from stagewire.codec import form_of
from stagewire.collector import resting_collector
from stagewire.errors import PassFault, VerifyError
from stagewire.passes import first_passes, verified_passes
from stagewire.private_files import private_directory
from stagewire.stage import Stage, discover
from stagewire.verify import verify

DEFAULT_STAGES: dict[str, str] = {
    "aotgrad": "aotgrad:AotGrad",
    "primops": "primops:Primops",
    "partition": "aotgrad:PartitionStage",
    "loopir": "loopir:LoopIR",
    "codegen": "codegen:Codegen",
}

BOUNDARIES: dict[str, tuple[str, str]] = {
    "aotgrad": ("capture", "grad"),
    "primops": ("grad", "prim"),
    "partition": ("prim", "cut"),
    "loopir": ("cut", "loop"),
    "codegen": ("loop", "program"),
}
"""The form of document that each slot consumes and produces."""

ENDS: dict[str, tuple[str, str]] = {"capture": ("call", "capture"), "load": ("unit", "callable")}
"""The slots at the two ends: what each is given and returns (`stagefold.capture_slot`, `codegen.load`)."""

_MEMBERS = ("name", "version", "consumes", "produces", "run")

StageLike = Stage | str | Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class FunctionStage:
    """A user's function of a document, dressed as a stage."""

    name: str
    consumes: str
    produces: str
    function: Callable[[Any], Any]
    version: str = "user"

    @property
    def takes_symbols(self) -> bool:
        """Whether sizes may be symbolic: unless the function says that it takes none."""
        return getattr(self.function, "takes_symbols", True)

    def run(self, document: Any, options: Any = None) -> Any:
        return self.function(document)


@dataclasses.dataclass(frozen=True)
class Event:
    """One stage has run: its slot, seconds, and what it produced."""

    stage: str
    seconds: float
    document: stagewire.Document


def _class(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def default_stage(slot: str) -> Stage:
    """The stage of ours for a slot."""
    return _class(DEFAULT_STAGES[slot])()


def resolve_stage(slot: str, stage: StageLike) -> Stage:
    """The stage object for what a user put into stages= for `slot`."""
    if slot not in BOUNDARIES and slot not in ENDS:
        raise UnknownStage(f"there is no stage slot {slot!r}", fix=f"The slots are: capture, {', '.join(SLOTS)}, load.")
    if isinstance(stage, str):
        found = discover()
        if stage not in found:
            raise UnknownStage(
                f"no installed distribution registers a stage {stage!r}",
                fix=f"Registered: {', '.join(sorted(found)) or 'none'}; or pass the stage object itself.",
            )
        stage = found[stage].load()
    stage = stage() if isinstance(stage, type) else stage
    consumes, produces = ("prim" if form == "cut" else form for form in {**BOUNDARIES, **ENDS}[slot])
    if isinstance(stage, Stage):
        if not isinstance(stage.version, str) or not stage.version:
            raise BadStage(f"stage {stage.name!r} has the version {stage.version!r}, which is no text: keys name it")
        if (stage.consumes, stage.produces) != (consumes, produces):
            raise BadStage(
                f"stage {stage.name!r} turns {stage.consumes} into {stage.produces}; "
                f"the slot {slot!r} turns {consumes} into {produces}"
            )
        return stage
    if callable(stage):
        return FunctionStage(getattr(stage, "__qualname__", slot), consumes, produces, stage)
    missing = [name for name in _MEMBERS if not hasattr(stage, name)]
    raise BadStage(
        f"stages[{slot!r}] is a {type(stage).__name__}, which has no {' and no '.join(missing)}",
        fix="Pass a Stage (name, version, consumes, produces, run) or a function of a document.",
    )


def takes_symbols(one: Any, default: bool = True) -> bool:
    """Whether a stage, target or back end takes symbolic sizes; `default` where it does not say."""
    return bool(getattr(one, "takes_symbols", default))


def registered_name(slot: str, stage: Stage) -> str | None:
    """The name by which another process finds a stage; None for an object of the program."""
    if slot in DEFAULT_STAGES and type(stage) is _class(DEFAULT_STAGES[slot]):
        return stage.name
    found = discover()
    loaded = found[stage.name].load() if stage.name in found else None
    return stage.name if loaded is type(stage) or loaded is stage else None


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """One stage for each slot, with its options object.

    verify: verify what every slot makes, foreign or not. broken: the directory in which a document is saved that breaks
    a constraint; None where it is not.
    """

    stages: tuple[tuple[str, Stage, Any], ...]
    verify: bool = False
    broken: Path | None = None

    @staticmethod
    def build(options: Options, stages: Mapping[str, StageLike] | None = None) -> Pipeline:
        """The default stages, with those of `stages` in their slots."""
        unused = [slot for slot in stages or {} if slot in ENDS]
        if unused:
            slots = ", ".join(map(repr, unused))
            raise UnusedStages(f"no slot {slots} is among the stages that carry a capture to a program")
        chosen = {slot: resolve_stage(slot, stage) for slot, stage in (stages or {}).items()}
        rows = []
        for slot in SLOTS:
            stage = chosen.get(slot) or default_stage(slot)
            rows.append((slot, stage, stage_options(slot, stage, options)))
        pipeline = Pipeline(tuple(rows), options.verify, options.broken_directory)
        lacks = [one.lacking() for _, *row in rows for one in _used(*row) if hasattr(one, "lacking")]
        if any(lacks):
            pipeline = pipeline.with_facts(lacks=frozenset.union(*lacks))
        times = options.autotune and "autotune" not in options.for_stage("codegen")
        return pipeline.with_facts(autotune="time") if times else pipeline

    def of_next_gradient(self) -> Pipeline:
        """The pipeline to the program of the gradient of what this one makes."""
        slot, stage, options = self.stages[0]
        if "gradient_order" not in fields_of(options):
            raise BadStage(
                f"the stage {stage.name!r} in slot {slot!r} makes no gradients of gradients",
                fix="Give its Options a gradient_order, as aotgrad.Options has, or avoid create_graph=True.",
            )
        return self.with_facts(gradient_order=options.gradient_order + 1)

    def with_facts(self, **facts: Any) -> Pipeline:
        """The pipeline whose stages are told facts of a program: each those that are fields of its Options.

        gradient_order: the program is the gradient of so many others (0: of none). deterministic: sums are in order.
        random_threads: as in `codegen.random_threads`. autotune: "time" where products are to be timed. lacks: as in
        `codegen.targets`, of what the stages use.
        """

        def told(options: Any) -> Any:
            known = {name: facts[name] for name in fields_of(options) if name in facts}
            return dataclasses.replace(options, **known) if known else options

        stages = [(slot, stage, told(options)) for slot, stage, options in self.stages]
        return dataclasses.replace(self, stages=tuple(stages))

    def describe(self) -> str:
        """Names, versions, code and options: part of every cache key."""
        shared = ";".join(f"{package}={fingerprint(package)}" for package in registering_packages())
        rows = [
            f"{slot}={stage.name}@{stage.version}+{fingerprint(type(stage).__module__.partition('.')[0])}:{options!r}"
            for slot, stage, options in self.stages
        ]
        return ";".join((shared, *rows))

    @property
    def is_portable(self) -> bool:
        """False if a stage, or something in its options, is a bare function or an object known by its address alone:
        no key can describe what it does, so nothing is cached then."""
        return not any(
            isinstance(stage, FunctionStage) or " at 0x" in repr(options) for _, stage, options in self.stages
        )

    @property
    def is_foreign(self) -> bool:
        """Whether code of others than ours is at work in some slot."""
        return any(_is_foreign(*row) for row in self.stages)

    @property
    def takes_symbols(self) -> bool:
        """Whether all stages take symbolic sizes: one that takes none says so (`takes_symbols = False`)."""
        return all(takes_symbols(one) for row in self.stages for one in (row[1], *_used(*row[1:])))

    def run(
        self, document: stagewire.Document, *, until: str = "program", observe: Callable[[Event], None] | None = None
    ) -> Any:
        """Carry `document` from where it stands to the form `until`.

        The cyclic garbage collector rests meanwhile: it costs more than all stages (measured in the notes on tracing).
        """
        with resting_collector():
            for slot, stage, options in self.between(document, until):
                document = self._step(slot, stage, options, document, observe)
        if form_of(document) != until:
            raise BadStage(f"a {form_of(document)} document cannot be carried to {until!r}")
        return document

    def between(self, document: stagewire.Document, until: str = "program") -> Iterator[tuple[str, Stage, Any]]:
        """The slots, with stage and options, that carry a document to the form `until`."""
        form = form_of(document)
        for slot, stage, options in self.stages:
            if form == until:
                return
            if BOUNDARIES[slot][0] == form:
                yield slot, stage, options
                form = BOUNDARIES[slot][1]

    def _step(
        self,
        slot: str,
        stage: Stage,
        options: Any,
        document: stagewire.Document,
        observe: Callable[[Event], None] | None,
    ) -> stagewire.Document:
        foreign = _is_foreign(slot, stage, options)
        if foreign:
            verified(document, f"what slot {slot!r} is given", self.broken)
        start = time.perf_counter()
        with noted(stage, slot) if foreign else contextlib.nullcontext():
            produced = stage.run(document, options)
        wanted = BOUNDARIES[slot][1]
        if not isinstance(produced, stagewire.Document) or form_of(produced) != wanted:
            found = form_of(produced) if isinstance(produced, stagewire.Document) else type(produced).__name__
            raise BadStage(f"stage {stage.name!r} in slot {slot!r} returned a {found}, not a {wanted}")
        if observe is not None:
            observe(Event(slot, time.perf_counter() - start, produced))
        if foreign or self.verify:
            what = f"what stage {stage.name!r} made in slot {slot!r}"
            verified(produced, what, self.broken, document, lambda: stage.run(document, options))
        return produced


@contextlib.contextmanager
def noted(stage: Stage, slot: str) -> Iterator[None]:
    """Meanwhile errors get a note that names the stage."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the stage {stage.name!r} in slot {slot!r}")
        raise


def verified(
    document: stagewire.Document,
    what: str,
    broken: Path | None,
    given: stagewire.Document | None = None,
    again: Callable[[], Any] | None = None,
) -> None:
    """Raise `BrokenDocument` for one that breaks a constraint.

    broken: the directory in which it is saved then. given: what it was made of. again: makes it once more, to find the
    pass.
    """
    try:
        verify(document, given)
    except VerifyError as error:
        saved = "" if broken is None else _saved(document, broken)
        culprit = _broken_pass(again, error.sizes) if again is not None else None
        told = f"{what} breaks {error.message}" + (f"\n{culprit.message}" if culprit is not None else "")
        raise BrokenDocument(told + saved, where=error.where) from (culprit or error)


def _saved(document: stagewire.Document, broken: Path) -> str:
    """A sentence that says where the document lies now."""
    name = hashlib.sha256(stagewire.encode(document)).hexdigest()[:16]
    path = broken / f"{name}.{form_of(document)}.json"
    try:
        stagewire.save(document, private_directory(broken) / path.name)
    except OSError as error:
        return f"\nIt is not saved: {error}"
    return f"\nIt is saved as {path}"


def stopped_after(run: Callable[[], stagewire.Document], wanted: str, what: str) -> stagewire.Document:
    """What `run` makes when no pass behind `wanted` does anything: PASS, or PASS:N for its N-th run.

    what: whose passes they are, for the error.
    """
    with first_passes(sys.maxsize) as runs:
        run()
    name, _, number = wanted.partition(":")
    places = [place for place, known in enumerate(runs, 1) if known.name == name]
    if not places or not (number or "1").isdecimal() or not 0 < int(number or 1) <= len(places):
        counts = ", ".join(f"{known}:{count}" for known, count in Counter(one.name for one in runs).items())
        raise CommandFault(f"{what} runs no pass {wanted!r}", fix=f"Its runs: {counts}.")
    with first_passes(places[int(number or 1) - 1]):
        return run()


def _broken_pass(again: Callable[[], Any], sizes: Mapping[str, int]) -> PassFault | None:
    """The fault of the first pass that breaks a constraint at these sizes; None where each keeps all of them."""
    try:
        with verified_passes(sizes):
            again()
    except PassFault as fault:
        return fault
    return None


_OURS = frozenset(("aotgrad", "primops", "loopir", "codegen"))


def _is_foreign(slot: str, stage: Stage, options: Any) -> bool:
    """Whether code of others than ours is at work."""
    values = (*(getattr(options, name) for name in fields_of(options)), *_used(stage, options))
    return type(stage) is not _class(DEFAULT_STAGES[slot]) or not all(map(_is_ours, values))


def _used(stage: Stage, options: Any) -> tuple[Any, ...]:
    """The registered objects whose code is a part of the stage, where it says so."""
    return getattr(stage, "uses", lambda options: ())(options)


@functools.cache
def registering_packages() -> tuple[str, ...]:
    """The packages that register ops, targets and the like: programs may depend on the code of each."""
    every = entry_points()
    points = (point for group in every.groups if group.startswith("stagefold.") for point in every.select(group=group))
    return tuple(sorted({point.module.partition(".")[0] for point in points}))


def _is_ours(value: Any) -> bool:
    """Whether a value of an option is plain data or code of ours."""
    if isinstance(value, (tuple, list, frozenset)):
        return all(map(_is_ours, value))
    if isinstance(value, (str, int, float, Path, type(None))):
        return True
    owner = value if hasattr(value, "__qualname__") else type(value)
    return str(owner.__module__).partition(".")[0] in _OURS


def fields_of(options: Any) -> tuple[str, ...]:
    """Names of the fields of a stage's options, or of their class."""
    return tuple(field.name for field in dataclasses.fields(options)) if dataclasses.is_dataclass(options) else ()


def stage_options(slot: str, stage: Stage, options: Options) -> Any:
    """The options object of a stage, of what the user set; None for a stage that has none."""
    fields = options.for_stage(slot)
    kind = getattr(stage, "Options", None)
    for name, value in options.implied(slot).items():
        if name in fields_of(kind):
            fields.setdefault(name, value)
        else:
            message = f"the stage {stage.name!r} in slot {slot!r} has no option {name!r}, and is not told of {value!r}"
            warnings.warn(message, NoEffect, stacklevel=2)
    if kind is None:
        if fields:
            raise BadOption(f"the stage {stage.name!r} in slot {slot!r} has no options, got {sorted(fields)}")
        return None
    known = fields_of(kind)
    unknown = [name for name in fields if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"Did you mean {f'{slot}.{close[0]}'!r}? " if close else ""
        message = f"the stage {stage.name!r} in slot {slot!r} has no option {unknown[0]!r}"
        raise BadOption(message, fix=f"{hint}Known: {', '.join(known)}.")
    hints = _type_hints(kind)
    return kind(**{name: checked(f"{slot}.{name}", value, hints.get(name)) for name, value in fields.items()})


def _type_hints(kind: Any) -> dict[str, Any]:
    """The types of the fields of a stage's options; none where they are written in names that only its author has."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}
