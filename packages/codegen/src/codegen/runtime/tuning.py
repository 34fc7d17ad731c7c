"""Choices of a unit, made by time on the device, once for each device and kept on disk.

record ::= pick seconds skipped        <directory>/tuned/<key>; key = sha256(excerpt, alignments, device, versions)

What stands in the unit is timed beside each alternative: on memory that is not in the device's cache, and the device
busy before, so that what the processor takes to launch is not seen. An alternative that cannot be compiled or loaded,
or whose results are not those of the unit, is skipped, and the record says why.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from msgspec.structs import replace

from codegen.choices import alone_type, chosen, given
from codegen.content_store import FORMAT, read_stored, write_stored
from codegen.runtime.memory_kinds import device_of, plan_memory
from codegen.runtime.required_cubins import required_cubins
from codegen.torch_capabilities import TORCH
from codegen.triton.compile_server import divided
from codegen.triton.compiling import compile_all, module_of
from codegen.triton.cubins import Cubin, CubinSpec, cubin_of, triton_version
from stagewire.codec import decode, encode
from stagewire.digest import digest
from stagewire.errors import StageError
from stagewire.grad import Binding
from stagewire.graph import Ref
from stagewire.program import Allocate, Choice, Instruction, Launch, MakeView, Program, Release, Unit, made_buffers
from stagewire.types import TensorType, reach

MARGIN = 0.98
"""An alternative is taken that needs at most this share of the unit's own time: less is noise."""

FLUSH = 256 << 20
"""Bytes that are written between two runs; more than the cache of any device holds."""

ROUNDS, REPEATS = 3, 7
"""All take turns in each round; the time of one is the least of the medians of its rounds."""

ERRORS = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""By how much results may differ, relative to their norms."""
TF32_ERROR = 1e-2


class Bench(NamedTuple):
    """What it takes to run a unit on a device. bind(unit, slow, library, cubins) -> callable."""

    index: int
    capability: int
    directory: Path
    bind: Callable[[Unit, Any, None, Mapping[str, Cubin]], Callable[..., tuple[Any, ...]]]


class Record(msgspec.Struct, frozen=True):
    """pick: the alternative to take; None: what stands in the unit.

    seconds: of that, then of each alternative (None: of one that was skipped). skipped: why, by the number of each.
    """

    pick: int | None
    seconds: tuple[float | None, ...] = ()
    skipped: dict[int, str] = {}


def make_choices(unit: Unit, bench: Bench) -> tuple[dict[int, int], dict[str, Cubin]]:
    """The alternative to take for each choice (none: as it stands), and the machine code that was made for them."""
    types = {name: type_ for name, type_ in plan_memory(chosen(unit, {})).types.items() if type_ is not None}
    aligned = _alignments(unit)
    cut = Excerpts(unit, types)
    excerpts = [cut.of(number) for number in range(len(unit.choices))]
    paths = [_path(one, aligned, bench) for one in excerpts]
    records: dict[Path, Record] = {}
    missing: dict[Path, Excerpt] = {}
    for path, one in zip(paths, excerpts, strict=True):
        kept = read_stored(path)
        if kept is not None:
            records[path] = msgspec.json.decode(kept, type=Record)
        else:
            missing[path] = one
    made: dict[str, Cubin] = {}
    if missing and not torch.cuda.is_current_stream_capturing():
        for path, (record, cubins) in _timed(missing, aligned, bench).items():
            records[path] = record
            made |= cubins
    found = {number: records[path].pick for number, path in enumerate(paths) if path in records}
    return {number: pick for number, pick in found.items() if pick is not None}, made


def _alignments(unit: Unit) -> dict[str, CubinSpec]:
    """What the kernels of a unit need, by function: the alternatives of a choice are one, or one without and then one
    with a prologue."""
    firsts = dict.fromkeys(range(len(unit.choices)), 0)
    lasts = {number: len(choice.alternatives) - 1 for number, choice in enumerate(unit.choices)}
    ways = ({}, firsts, lasts)
    return {one.info.function or one.info.name: one for way in ways for one in required_cubins(chosen(unit, way))}


def _kernels(one: Excerpt, aligned: Mapping[str, CubinSpec]) -> list[CubinSpec]:
    """What the kernels of an excerpt need, as they do in the whole unit."""
    back = {new: old for old, new in one.names.items()}
    infos = {info.name: info for info in one.unit.kernels}
    return [aligned[one.functions[back[name]]]._replace(info=info) for name, info in infos.items()]


def _path(one: Excerpt, aligned: Mapping[str, CubinSpec], bench: Bench) -> Path:
    layouts = [(sorted(kernel.aligned), kernel.dtypes) for kernel in _kernels(one, aligned)]
    device = torch.cuda.get_device_name(bench.index)
    versions = FORMAT, torch.__version__, triton_version(), torch.version.cuda
    text = "\0".join((one.key, repr(layouts), device, str(bench.capability), repr(versions)))
    return bench.directory / "tuned" / hashlib.sha256(text.encode()).hexdigest()[:40]


# ---- a choice as a unit of its own, the same text wherever the same is to be chosen


class Excerpt(NamedTuple):
    """`unit` has one choice, of all its instructions.

    names: of its kernels, by what they are called in the whole unit; functions: what these are there.
    """

    unit: Unit
    names: dict[str, str]
    functions: dict[str, str]

    @property
    def key(self) -> str:
        """Equal for equal calculations on memory of the same layout, on whichever device of a kind."""
        data = encode(Program(binding=Binding(inputs=(), outputs=()), forward=self.unit), "json")
        return digest(decode(re.sub(rb'"cuda:\d+"', b'"cuda"', data)))


class Excerpts:
    """The choices of a Triton unit. types: of its buffers."""

    def __init__(self, unit: Unit, types: Mapping[str, TensorType]) -> None:
        self.unit, self.types = unit, types
        self.infos = {info.name: info for info in unit.kernels}
        shared, texts = divided(unit.source, {info.function or info.name for info in unit.kernels})
        self.shared, self.texts = shared.strip(), {name: text.strip() for name, text in texts.items()}

    def of(self, number: int) -> Excerpt:
        """One choice. Inputs are what exists before; outputs what is written and exists afterwards."""
        choice = self.unit.choices[number]
        own = self.unit.instructions[choice.start : choice.stop]
        ways = (own, *choice.alternatives)
        launched = dict.fromkeys(one.kernel for way in ways for one in way if isinstance(one, Launch))
        names = {name: f"kernel_{n}" for n, name in enumerate(launched)}
        functions = {name: self.infos[name].function or name for name in launched}
        called = {name: f"function_{n}" for n, name in enumerate(dict.fromkeys(functions.values()))}
        kernels = tuple(
            replace(
                self.infos[old],
                name=new,
                function=called[functions[old]],
                parameters=tuple(f"p{n}" for n in range(len(self.infos[old].parameters))),
            )
            for old, new in names.items()
        )
        texts = [self.texts[old].replace(f"def {old}(", f"def {new}(", 1) for old, new in called.items()]
        inputs = tuple(given(own))
        every = (made for one in own if not isinstance(one, MakeView) for made in made_buffers(one))
        ended = {
            one.reuse if isinstance(one, Allocate) else one.buffer for one in own if isinstance(one, Allocate | Release)
        }
        outputs = tuple(Ref(name) for name, _, _ in every if name not in ended)
        alone = Unit(
            target="triton",
            source="\n\n\n".join([self.shared, *texts]) + "\n",
            kernels=kernels,
            inputs=inputs,
            input_types=tuple(alone_type(name, self.types[name], own) for name in inputs),
            outputs=outputs,
            instructions=_renamed(own, names),
            written=tuple(one.reuse for one in own if isinstance(one, Allocate) and one.reuse in inputs),  # type: ignore
            choices=(Choice(0, len(own), tuple(_renamed(one, names) for one in choice.alternatives)),),
        )
        return Excerpt(alone, names, functions)


def _renamed(instructions: tuple[Instruction, ...], names: Mapping[str, str]) -> tuple[Instruction, ...]:
    """The instructions with their kernels called otherwise."""
    return tuple(replace(one, kernel=names[one.kernel]) if isinstance(one, Launch) else one for one in instructions)


# ---- compiling


def _timed(
    missing: Mapping[Path, Excerpt], aligned: Mapping[str, CubinSpec], bench: Bench
) -> dict[Path, tuple[Record, dict[str, Cubin]]]:
    """The records of excerpts, which are written, and the machine code of the kernels taken, by names in the unit."""
    cubins = _compiled(missing, aligned, bench)
    found = {}
    with torch.no_grad(), torch.cuda.device(bench.index):
        for path, one in missing.items():
            try:
                record = _Race(one, cubins[path], bench).run()
            except (torch.OutOfMemoryError, StageError, _NotThere):
                continue  # what stands in the unit does not run here and now: nothing is known, and nothing kept
            write_stored(path, msgspec.json.encode(record))
            taken = chosen(one.unit, {} if record.pick is None else {0: record.pick}).kernels
            code = {info.name: cubins[path][info.name] for info in taken}
            found[path] = record, {old: code[new] for old, new in one.names.items() if new in code}
    return found  # type: ignore[return-value]


def _compiled(
    missing: Mapping[Path, Excerpt], aligned: Mapping[str, CubinSpec], bench: Bench
) -> dict[Path, dict[str, Cubin | str]]:
    """For each excerpt the machine code of its kernels, or why there is none; all side by side."""
    jobs = [(path, one.unit.source, kernel) for path, one in missing.items() for kernel in _kernels(one, aligned)]
    request = [(source, kernel.job(bench.capability)) for _, source, kernel in jobs]
    limit = torch.cuda.get_device_properties(bench.index).shared_memory_per_block_optin
    found: dict[Path, dict[str, Cubin | str]] = {path: {} for path in missing}
    for (path, _, kernel), result in zip(jobs, compile_all(request, module_of), strict=True):
        try:
            cubin = cubin_of(kernel, result)
        except StageError as error:
            found[path][kernel.info.name] = error.message
        else:
            fits = cubin.shared <= limit
            found[path][kernel.info.name] = cubin if fits else f"takes {cubin.shared} bytes of shared memory of {limit}"
    return found


# ---- timing


class _Race:
    """One excerpt: what stands in the unit, and the alternatives, on the same memory."""

    def __init__(self, one: Excerpt, cubins: Mapping[str, Cubin | str], bench: Bench) -> None:
        self.unit, self.cubins, self.bench = one.unit, cubins, bench
        self.device = device_of(one.unit)
        self.skipped: dict[int, str] = {}

    def run(self) -> Record:
        """Time all; an excerpt whose own instructions do not run here raises."""
        own = self.bound({})
        count = len(self.unit.choices[0].alternatives)
        runs = {number: run for number in range(count) if (run := self.alternative(number)) is not None}
        expected = own(*self.memory())
        for number, run in list(runs.items()):
            if not self.agrees(run(*self.memory()), expected):
                self.skipped[number] = "its results are not those of the unit"
                del runs[number]
        del expected
        seconds = self.times([own, *runs.values()])
        best = min(range(len(seconds)), key=seconds.__getitem__)
        numbers = [None, *runs]
        pick = numbers[best] if seconds[best] < MARGIN * seconds[0] else None
        by_number = dict(zip(numbers, seconds, strict=True))
        return Record(pick, tuple(by_number.get(number) for number in (None, *range(count))), self.skipped)

    def bound(self, picks: dict[int, int]) -> Callable[..., tuple[Any, ...]]:
        unit = chosen(self.unit, picks)
        cubins: dict[str, Cubin] = {}
        for info in unit.kernels:
            code = self.cubins[info.name]
            if isinstance(code, str):
                raise _NotThere(code)
            cubins[info.name] = code
        return self.bench.bind(unit, _refuse, None, cubins)

    def alternative(self, number: int) -> Callable[..., tuple[Any, ...]] | None:
        """An alternative that ran once; None if it does not."""
        try:
            run = self.bound({0: number})
            run(*self.memory())
            torch.cuda.synchronize()
        except (StageError, _NotThere) as error:
            self.skipped[number] = str(error)
            return None
        return run

    def memory(self) -> list[torch.Tensor]:
        """The inputs, the same each time; the generator is of its own, so that no program draws other numbers."""
        generator = torch.Generator(self.device).manual_seed(0)
        return [_filled(type_, generator) for type_ in self.unit.input_types if isinstance(type_, TensorType)]

    def agrees(self, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
        """Whether floating results are about those of the unit (of others a rounding may change a single one)."""
        tf32 = any(dict(info.constants).get("TF32") for info in self.unit.kernels)
        for have, want in zip(found, expected, strict=True):
            if want.dtype.is_floating_point:
                off = torch.linalg.vector_norm(have.double() - want.double())
                allowed = max(ERRORS.get(str(want.dtype).removeprefix("torch."), 1e-2), TF32_ERROR if tf32 else 0)
                if not off <= allowed * torch.linalg.vector_norm(want.double()) + 1e-30:
                    return False
        return True

    def times(self, runs: Sequence[Callable[..., Any]]) -> list[float]:
        """Seconds of each."""
        inputs = self.memory()
        flush = torch.empty(FLUSH, dtype=torch.uint8, device=self.device)
        found: list[list[float]] = [[] for _ in runs]
        for _ in range(ROUNDS):
            for run, seconds in zip(runs, found, strict=True):
                seconds.append(_median(run, inputs, flush))
        return [min(seconds) for seconds in found]


class _NotThere(Exception):
    """Machine code that could not be made, or memory that it cannot be run on."""


def _refuse(*inputs: Any) -> Any:
    """What runs an excerpt where the native executor does not take its inputs."""
    raise _NotThere("inputs do not begin where the native executor wants them")


def _median(run: Callable[..., Any], inputs: list[torch.Tensor], flush: torch.Tensor) -> float:
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    run(*inputs)
    for start, end in events:
        flush.zero_()
        start.record()
        run(*inputs)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1000


def _filled(type_: TensorType, generator: torch.Generator) -> torch.Tensor:
    """A tensor of this type: normal numbers, or zeros where they are no floats (indices of something, perhaps)."""
    shape, stride, start = (tuple(map(int, type_.shape)), tuple(map(int, type_.stride)), int(type_.storage_offset))  # type: ignore
    memory = torch.zeros(start + reach(shape, stride), dtype=getattr(torch, type_.dtype), device=type_.device)
    if memory.dtype.is_floating_point and memory.element_size() > 1:
        memory.normal_(generator=generator)
    return memory.as_strided(shape, stride, start)


# ---- precision


def tf32_allowed() -> bool:
    """Whether torch's flags let products of float32 round their operands."""
    return TORCH.precision("cuda", "matmul") == "tf32"


def with_tf32(unit: Unit) -> Unit:
    """The unit with templates that round float32 operands."""
    kernels = []
    for info in unit.kernels:
        constants = tuple((name, 1 if name == "TF32" else value) for name, value in info.constants)
        kernels.append(replace(info, constants=constants))
    return replace(unit, kernels=tuple(kernels))


def by_precision(allowed: bool, run: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """What runs a unit by whether float32 may be rounded now as when it was loaded. other: what is right for any."""
    return lambda *inputs: (run if tf32_allowed() == allowed else other)(*inputs)
