"""The default backend: stages two to five, the cache, and the binding to the caller's tensors."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from aotgrad import bind, is_linear, partial_backward, restore_twins, run_plain
from aotgrad.errors import BackwardFailed
from bytecap import Changes, undone
from codegen import Replay, prepare, random_threads, why_not_recorded
from codegen import load as load_unit
from codegen.errors import NotRecorded
from stagefold.cache import Cache, custom_operators, fingerprint, is_on_gpu, program_key
from stagefold.capsule.recorder import Recorder, RunRecorder, recorder_in
from stagefold.errors import FixedSizes, RunsPlain, SizesRefused, is_refusal
from stagefold.foreign_units import OUR_TARGETS, checked
from stagefold.freezing import FrozenCall, Programs, frozen_programs
from stagefold.layer_stacks import program_of
from stagefold.options import Options
from stagefold.pipeline import Event, Pipeline, StageLike, noted, resolve_stage
from stagefold.progress import Progress
from stagefold.size_specialisation import SizeSpecialisations, with_sizes
from stagefold.subgraphs import calls_of, runs_in_subgraphs, without_waits
from stagewire.capture import Capture, holds
from stagewire.errors import PartlyDone, StageError
from stagewire.grad import Binding, Fresh, SavedInput, SavedResult, ViewOf
from stagewire.graph_passes import with_strides_of
from stagewire.program import CallExtern, Program, Unit
from stagewire.vocabulary import is_prim

Callee = Callable[..., tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """What one compilation did: where its program came from and the seconds of each step.

    not_recorded: where programs are to be CUDA graphs, why this one is launched each time instead; each reason once.
    """

    name: str
    cached: bool
    key: str | None
    seconds: tuple[tuple[str, float], ...]
    not_recorded: tuple[str, ...] = ()


class StagefoldBackend:
    """`backend(capture, example_inputs) -> callable(*tensors) -> tuple`.

    One object serves one `compile()` call; `reports` lists its compilations in order. takes_symbols: sizes of inputs
    may be symbolic in a capture; refused_sizes: how many captures had to be made again with fixed ones.
    takes_data_sizes: data may decide sizes (`stagefold.subgraphs`); each part that is compiled has a report.
    breaks_at_data: graphs end there if they may: a program of parts is not recorded as a CUDA graph, two graphs are.
    ends: the stages in slots "capture" and "load", where there are any: capsules name them.
    """

    def __init__(
        self, options: Options, stages: Mapping[str, StageLike] | None = None, recorder: Recorder | None = None
    ) -> None:
        """recorder: told of each compilation. Default: that of `options.trace_dir`, if there is one."""
        self.options = options
        traced = recorder is None and options.trace_dir is not None
        self.recorder = recorder_in(options.trace_dir) if traced and options.trace_dir else recorder
        stages = dict(stages or {})
        loader = stages.pop("load", None)
        self._loader = None if loader is None else resolve_stage("load", loader)
        self.ends = {} if self._loader is None else {"load": self._loader}
        self.pipeline = Pipeline.build(options, stages)
        self.takes_symbols = self.pipeline.takes_symbols
        self.takes_data_sizes = self.takes_symbols
        self.breaks_at_data = options.cuda_graphs
        self.reports: list[CompileReport] = []
        self.refused_sizes = 0
        self._loaded: weakref.WeakSet[Callee] = weakref.WeakSet()
        self._cache = Cache(options.cache_directory, options.cache_limits)

    def __call__(self, capture: Capture, example_inputs: tuple[Any, ...] | None) -> Callee:
        capture = without_waits(capture, self._is_kernels)
        if runs_in_subgraphs(capture):
            return calls_of(capture, lambda part: self(part, None), strict=self._raises_faults)
        return self._compiled(capture, example_inputs)

    def _is_kernels(self, function: Capture) -> bool:
        """Whether a function of control flow computes, and does nothing else, in ops that all become kernels. What
        cannot be compiled is not; why shows when it is to run."""
        try:
            found = self.pipeline.run(function, until="prim")
        except Exception:
            return False
        every = all(is_prim(node.target) and node.effect is None for node in found.joint.nodes)
        return every and not found.binding.mutations

    @property
    def _raises_faults(self) -> bool:
        """Whether faults in what a stage does with symbolic sizes are raised, not told."""
        return self.options.verify or self._loader is not None or self.pipeline.is_foreign

    def programs(self, capture: Capture) -> Programs:
        """The program of a capture, or the two that it is frozen into; nothing is loaded."""
        with self._fixed_if_need_be(capture):
            return self._programs(capture, lambda event: None, traced=False)[0]

    def _compiled(self, capture: Capture, example_inputs: tuple[Any, ...] | None = None) -> Callee:
        if self.recorder is None:
            return self._made(capture, None)
        pipeline = self._pipeline_for(capture)
        with self.recorder.run(capture, example_inputs, pipeline, self.options, self.ends) as record:
            return self._made(capture, record)

    def _made(self, capture: Capture, record: RunRecorder | None) -> Callee:
        seconds: list[tuple[str, float]] = []
        with Progress(capture.code.name, self.options.progress) as progress:

            def observe(event: Event) -> None:
                seconds.append((event.stage, event.seconds))
                progress.step(event.stage, event.seconds)
                if record is not None:
                    record.note_step(event.stage, event.seconds)
                    record.add(event.document)

            try:
                with self._fixed_if_need_be(capture):
                    programs, cached, key = self._programs(capture, observe, traced=record is not None)
                    progress.step("cache", 0.0) if cached else None
                    if record is not None:
                        record.write()  # loading may end the process
                    start = time.perf_counter()
                    function = self._load_all(programs, capture)
            except BackwardFailed as error:
                # Eager runs such a program, and raises when its backward runs. So does this.
                self.reports.append(CompileReport(capture.code.name, False, None, tuple(seconds)))
                return _Plain(capture, f"runs plain, since its backward will raise: {error.message}")
            seconds.append(("load", time.perf_counter() - start))
            if record is not None:
                record.note_step(*seconds[-1])
        reasons = self._not_recorded(programs, capture)
        self.reports.append(CompileReport(capture.code.name, cached, key, tuple(seconds), reasons))
        return function

    def _not_recorded(self, programs: Programs, capture: Capture) -> tuple[str, ...]:
        """Why what runs at each call is not recorded as a CUDA graph, where it is to be."""
        if not self.options.cuda_graphs:
            return ()
        if _has_sizes_of_data(capture):
            message = f"{capture.code.name} is not recorded as a CUDA graph: {_SIZES_OF_DATA}; it is launched each time"
            warnings.warn(message, NotRecorded, stacklevel=2)
            return (_SIZES_OF_DATA,)
        units = (programs.main.forward, programs.main.backward)
        reasons = (why_not_recorded(unit) for unit in units if unit is not None)
        return tuple(dict.fromkeys(reason for reason in reasons if reason is not None))

    @contextlib.contextmanager
    def _fixed_if_need_be(self, capture: Capture) -> Iterator[None]:
        """What cannot be compiled with symbolic sizes is tried with fixed ones: a fault of the program shows again."""
        try:
            yield
        except Exception as error:
            if not capture.symbols:
                raise
            self._count_refusal(capture, error)
            if isinstance(error, StageError) and error.needs_fixed_sizes:
                raise
            raise SizesRefused(f"{capture.code.name} with symbolic sizes: {error}") from error

    def _count_refusal(self, capture: Capture, error: Exception) -> None:
        """Count a program that a stage refuses with symbolic sizes. A fault is raised under `verify` and where code of
        others is at work, else told."""
        if not is_refusal(error):
            if self._raises_faults:
                raise error
            what = str(error).partition("\n")[0]
            message = f"{capture.code.name} is compiled for each size, after a fault with symbolic ones: "
            warnings.warn(f"{message}{type(error).__name__}: {what}", FixedSizes, stacklevel=2)
        self.refused_sizes += 1

    def _load_all(self, programs: Programs, capture: Capture) -> Callee:
        records = not _has_sizes_of_data(capture)
        plain = _undone(_Plain(capture, _OTHER_MEMORY), programs.main.binding)
        if programs.prepare is None:
            return self.load(programs.main, capture, plain, records=records)
        count = len(programs.prepare.binding.inputs)
        main = self.load(programs.main, None, lambda *inputs: plain(*inputs[:count]), records=records)
        sources = tuple(place for place, given in enumerate(programs.prepare.binding.inputs) if given.used)
        return FrozenCall(main, self.load(programs.prepare, records=False), sources)

    def load(
        self, program: Program, capture: Capture | None = None, plain: Callee | None = None, *, records: bool = True
    ) -> Callee:
        """Compile (or fetch) the machine code of both directions and bind them.

        With the capture of the program at hand its gradients can be differentiated: their programs are made when a
        backward with create_graph=True first asks for them. `plain` as for `aotgrad.bind`. records: whether it may be
        recorded as a CUDA graph, where programs are to be.
        """
        units = [program.forward] if program.backward is None else [program.forward, program.backward]
        records &= self.options.cuda_graphs and self._loader is None
        replay = _replays(program.binding, self.options.recorded_sizes)[: len(units)] if records else ()
        # Another version is made: the memory that others keep for their next run may be large, and not needed again.
        for other in tuple(self._loaded):
            other([])
        loaded = self._load_units(units, replay)
        if not replay and self._loader is None:  # those of a recording would forget it
            self._loaded.update(run for run, unit in zip(loaded, units, strict=True) if unit.inputs)
        backward = loaded[1] if program.backward is not None else None
        gradient = None if capture is None else functools.partial(self._gradient, capture)
        partial = None if capture is None or not is_linear(capture) else _Partial(self, capture, program, backward)
        call = bind(
            program.binding, loaded[0], backward, gradient=gradient, plain=plain, takes_list=True, partial=partial
        )
        call.assumes = program.binding.assumptions  # type: ignore[attr-defined]  # guarded by bytecap
        call.atomic = True  # type: ignore[attr-defined]  # bytecap need not copy what it writes
        if capture is not None and "stagefold.philox_state.default" in _externs(program.forward):
            return PlainWhileRecording(call, _undone(_Plain(capture, _STATE_UNKNOWN), program.binding))
        return call

    def _load_units(self, units: Sequence[Unit], replay: tuple[Replay, ...] = ()) -> tuple[Callee, ...]:
        """A callable of each unit, as `codegen.load` makes them, or what stands in slot "load"."""
        if self._loader is None:
            loaded = load_unit(units, cache_dir=self._cache.code_directory(), replay=replay)
            return tuple(
                run if unit.target in OUR_TARGETS else checked(run, unit, f"target {unit.target!r}", takes_list=True)
                for run, unit in zip(loaded, units, strict=True)
            )
        what = f"stage {self._loader.name!r} in slot 'load'"
        with noted(self._loader, "load"):
            made = [self._loader.run(unit) for unit in units]  # type: ignore[arg-type]
        return tuple(checked(run, unit, what) for run, unit in zip(made, units, strict=True))

    def load_partial(self, capture: Capture, program: Program, arrived: tuple[bool, ...]) -> Callee | None:
        """The backward for those tangents, compiled; None where it cannot be had for what `program` saves, or where a
        stage cannot take the sizes as symbols: the whole backward runs then, with zeros for the others."""
        try:
            return self._partial(capture, program, arrived)
        except StageError as error:
            if not capture.symbols:
                raise
            self._count_refusal(capture, error)
            return None

    def _partial(self, capture: Capture, program: Program, arrived: tuple[bool, ...]) -> Callee | None:
        pipeline = self._pipeline_for(capture)
        prim = pipeline.run(capture, until="cut")
        if prim.binding.saved != program.binding.saved:
            return None
        if prim.backward is not None and program.backward is not None:
            prim = replace(prim, backward=with_strides_of(prim.backward, program.backward.input_types))
        document = partial_backward(prim, arrived)
        if document is None:
            return None
        return self._load_units([pipeline.run(document).forward])[0]

    def _gradient(self, capture: Capture) -> tuple[Callee, tuple[bool, ...], bool]:
        """The program of the gradient of what this backend makes: see `aotgrad.higher_order.Program`."""
        backend = self._of_next_order

        def made(capture: Capture) -> tuple[Callee, Binding]:
            program, _, _ = backend._program(capture, lambda event: None, traced=False)
            return backend.load(program, capture, records=not _has_sizes_of_data(capture)), program.binding

        call, binding = made(capture)
        if binding.assumptions:
            fixed = lambda sizes: made(with_sizes(capture, sizes))[0]  # noqa: E731
            # The program may have fixed a size that its assumptions name; the capture's inputs have all symbols.
            inputs = (*(one.value for one in capture.inputs), *binding.inputs[len(capture.inputs) :])
            call = SizeSpecialisations(call, inputs, binding.assumptions, fixed)
        is_once = any(function.once for function in capture.functions)
        return call, tuple(given.used for given in binding.inputs), is_once

    @functools.cached_property
    def _of_next_order(self) -> StagefoldBackend:
        """A backend whose programs are the gradients of this one's."""
        backend = copy.copy(self)
        vars(backend).pop("_of_next_order", None)
        backend.pipeline = self.pipeline.of_next_gradient()
        return backend

    def _pipeline_for(self, capture: Capture) -> Pipeline:
        """Sums are in order where deterministic algorithms are asked for. Programs on a GPU may compute the random
        numbers that eager draws there, where it is known which these are.

        Not in a CUDA graph, in which the state of the generator changes from replay to replay.
        """
        chosen = self.options.for_stage("primops")
        pipeline = self.pipeline
        if capture.state.deterministic and "deterministic" not in chosen:
            pipeline = pipeline.with_facts(deterministic=True)
        if self.options.cuda_graphs or "random_threads" in chosen or not _draws_on_gpu(capture):
            return pipeline
        return pipeline.with_facts(random_threads=random_threads(self._cache.code_directory()))

    def _programs(
        self, capture: Capture, observe: Callable[[Event], None], *, traced: bool
    ) -> tuple[Programs, bool, str | None]:
        """The program of a capture, or the two that it is frozen into; whether from the cache; its key."""
        if not self.options.freeze:
            program, cached, key = self._program(capture, observe, traced=traced)
            return Programs(program), cached, key
        keys = [self._key(capture, f";freezing={fingerprint('stagefold')};{part}") for part in Programs._fields]
        if not traced:
            main, frozen = (None if key is None else self._read(key, capture) for key in keys)
            if main is not None and (frozen is not None or len(main.binding.inputs) == len(capture.inputs)):
                return Programs(main, frozen), True, keys[0]
        self._prepare(capture)
        programs = frozen_programs(self._pipeline_for(capture), capture, observe)
        for key, program in zip(keys, programs, strict=True):
            if key is not None and program is not None:
                self._cache.write(key, program)
        return programs, False, keys[0]

    def _prepare(self, capture: Capture) -> None:
        """Have begun, beside the stages, what loading their program will wait for."""
        if is_on_gpu(capture):
            prepare(self._cache.code_directory())

    def _key(self, capture: Capture, more: str = "") -> str | None:
        """The key of a capture's program in the cache; None where it is not kept there."""
        pipeline = self._pipeline_for(capture)
        usable = self.options.cache and capture.portable and pipeline.is_portable
        return program_key(capture, pipeline.describe() + more) if usable else None

    def _program(
        self, capture: Capture, observe: Callable[[Event], None], *, traced: bool
    ) -> tuple[Program, bool, str | None]:
        keys = self._keys(capture)
        place = keys[-1] if keys else None
        for key in () if traced else reversed(keys):
            program = self._read(key, capture)
            if program is not None and _serves(program, capture):
                return program, True, key
            if program is None:
                place = key
        self._prepare(capture)
        pipeline = self._pipeline_for(capture)
        if traced:  # the documents of all stages are kept
            program = pipeline.run(capture, observe=observe)
        else:
            program = program_of(pipeline, capture, observe)
        if place is not None:
            self._cache.write(place, program)
        return program, False, place

    def _read(self, key: str, capture: Capture) -> Program | None:
        """The program in the cache; None, too, where it calls operators that this process cannot have."""
        program = self._cache.read(key)
        if program is None or not restore_twins(_externs(program.forward, program.backward), custom_operators(capture)):
            return None
        return program

    def _keys(self, capture: Capture) -> tuple[str, ...]:
        """Where the program may be kept: as one made at whatever sizes, and as one made at those of the capture."""
        exact = self._key(capture)
        if exact is None or not capture.symbols:
            return () if exact is None else (exact,)
        return program_key(capture, self._pipeline_for(capture).describe(), at_its_sizes=False), exact


class _Partial:
    """Backwards for some of the tangents, by which ones arrived; each is made when it was wanted for the third time.

    Until then the missing tangents are zeros, so that a program that runs a few times is compiled once.
    """

    def __init__(self, backend: StagefoldBackend, capture: Capture, program: Program, whole: Callee | None) -> None:
        self._backend, self._capture, self._program, self._whole = backend, capture, program, whole
        self._wanted: Counter[tuple[bool, ...]] = Counter()
        self._made: dict[tuple[bool, ...], Callee | None] = {}
        self._lock = threading.Lock()

    def __call__(self, arrived: tuple[bool, ...]) -> Callee | None:
        if arrived in self._made:
            return self._made[arrived]
        with self._lock:
            self._wanted[arrived] += 1
            if self._wanted[arrived] == 3:
                self._made[arrived] = self._backend.load_partial(self._capture, self._program, arrived)
                if self._made[arrived] is not None and self._whole is not None:
                    self._whole([])  # gives back its memory
        return self._made.get(arrived)


_OTHER_MEMORY = (
    "runs plain for inputs that share memory with one that it writes into, or that start elsewhere in their storage "
    "than those it was compiled for"
)


class _Plain:
    """Runs the captured calls by eager torch; `why` is a sentence about the program.

    Exact, and as slow as eager; the first such call says so.
    """

    def __init__(self, capture: Capture, why: str) -> None:
        self._capture = capture
        self._why = why
        self.calls = 0

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if not self.calls:
            warnings.warn(f"{self._capture.code.name} {self._why}", RunsPlain, stacklevel=3)
        self.calls += 1
        return run_plain(self._capture, *inputs)


def _undone(plain: _Plain, binding: Binding) -> Callee:
    """`plain`, which leaves what it writes as it was where it raises. What autograd saw of a write stays seen."""
    written = tuple([mutation.input for mutation in binding.mutations])
    is_final = any(mutation.under_grad for mutation in binding.mutations)
    atomic = undone(plain, Changes(written, is_final))
    if atomic is not None:
        return atomic

    def call(*inputs: Any) -> tuple[Any, ...]:
        try:
            return plain(*inputs)
        except Exception as error:
            raise PartlyDone(error) from error

    return call


_STATE_UNKNOWN = "runs plain while its caller records a CUDA graph: the state of the generator is not known then"


class PlainWhileRecording:
    """A program that reads the state of a GPU's generator, and `plain` while a CUDA graph is being recorded."""

    def __init__(self, call: Callee, plain: Callee) -> None:
        self.call, self.plain = call, plain
        self.assumes = getattr(call, "assumes", ())
        self.atomic = True

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return self.plain(*inputs) if torch.cuda.is_current_stream_capturing() else self.call(*inputs)


def _draws_on_gpu(capture: Capture) -> bool:
    """Whether a program may draw random numbers there, by the names of what it calls."""
    return is_on_gpu(capture) and any(part in node.target for node in capture.graph.nodes for part in _DRAWING)


_DRAWING = ("drop", "rand", "bernoulli", "uniform")
"""Parts of such names; what has another one is drawn by ATen."""


_SIZES_OF_DATA = "data decides sizes of its inputs, which are others at every call"


def _has_sizes_of_data(capture: Capture) -> bool:
    """Whether a program (a part of one, see `stagefold.subgraphs`) has symbols for sizes that data decides."""
    return any(known.source is None for known in capture.symbols)


def _replays(binding: Binding, sizes: int) -> tuple[Replay, Replay]:
    """What recording needs to know of forward and backward. sizes: as in `Replay`."""
    stays = {number for number, given in enumerate(binding.inputs) if given.role not in ("tensor", "number")}
    stays.update(range(len(binding.inputs), len(binding.inputs) + len(binding.constants)))
    handed = {output.result for output in binding.outputs if isinstance(output, Fresh)}
    saved = {place for place, slot in enumerate(binding.saved) if isinstance(slot, SavedInput) and slot.input in stays}
    alone = {slot.result for slot in binding.saved if isinstance(slot, SavedResult)} - handed
    alone -= {output.base for output in binding.outputs if isinstance(output, ViewOf) and output.of == "result"}
    alone -= {mutation.result for mutation in binding.mutations}
    forward = Replay(frozenset(stays), frozenset(handed), frozenset(alone), sizes)
    return forward, Replay(frozenset(saved), sizes=sizes)


def _serves(program: Program, capture: Capture) -> bool:
    """Whether a program that was made at other sizes is right for those of the capture."""
    sizes = {symbol.name: symbol.hint for symbol in capture.symbols if symbol.hint is not None}
    return all(holds(relation, sizes) for relation in program.binding.assumptions)


def _externs(*units: Unit | None) -> list[str]:
    """What units call besides their kernels."""
    return [step.target for unit in units if unit for step in unit.instructions if isinstance(step, CallExtern)]
