"""Recordings of launches, and the memory that they share.

memory of a recording ::= result* between* copy*
result, copy          ::= block                       see `result_memory.py`; a copy of an input that Python sees
between               ::= block | pool | own pool

What a recording makes or is given a copy of, and nobody sees after its end ("between"), lies in memory that all
recordings of a device share: copies of inputs and large buffers in one block, each at a place that is free while it is
used; small buffers, and what a library takes for itself, in one pool of torch's allocator. They may share it because

* nothing in it lives from one replay to the next: inputs are copied right before it, and results, like copies that
  Python sees, lie in other memory, taken before it begins (`with_destinations`). So a recording finds it empty,
  whichever came before, and may use all of it; it is about as large as the largest of them needs, not as all need
  together;
* replays follow one another: those of a device are all on the stream of the first one and under one lock. A call on
  another stream, or while another thread replays, runs plain, in memory of torch's other pools.

A result that a library took memory for is copied out of the pool, as part of the recording. Where these are a larger
part of what the unit makes than SHARE (forwards of convolutions that are trained: nearly all that they make is such a
result, and saved), copying costs more than it gains: such a recording has a pool of its own.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from msgspec.structs import replace

from codegen.runtime.arguments import Symbols
from codegen.runtime.externs import WRITES_ITS_RESULT
from codegen.runtime.memory_kinds import Homes, plan_memory, span
from codegen.runtime.python_wrapper import at_distance, repeats_once
from codegen.runtime.result_memory import Block, Hold, ResultMemory, Span, on_blocks
from stagewire.expr import Dim, evaluate
from stagewire.graph import Ref
from stagewire.program import Allocate, CallExtern, Instruction, MakeView, Release, Unit, made_buffers
from stagewire.substitution import replace_symbols
from stagewire.types import TensorType

SHARE = 1 / 8
"""Part of what a unit makes that may be copied: it is written once more, in kernels that memory bounds."""


class Recording(NamedTuple):
    """Launches, and the memory that they are for.

    pool: what is between lies in it, if that is shared. copies: of the inputs that move. results: a tensor on each,
    None for other outputs; copied: whether the caller gets a copy of it. hold: the blocks that copies and results are
    in, some around memory of a pool of its own. places: where each result is that the caller gets itself.
    """

    graph: Any
    pool: Pool | None
    copies: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor | None, ...]
    copied: tuple[bool, ...]
    hold: Hold
    places: Places

    @classmethod
    def of(
        cls, graph: Any, pool: Pool | None, copies: Any, results: Any, copied: Any, blocks: list[Block],
        addresses: Counter[int],
    ) -> Recording:  # fmt: skip
        """A recording whose results nobody else holds yet. addresses: of all recordings of the device."""
        blocks = list(blocks)
        results = tuple(on_blocks(results, blocks))
        kept = (*copies, *(one for one in results if one is not None))
        own = [one for one, is_copied in zip(results, copied, strict=True) if one is not None and not is_copied]
        places = Places(addresses, [place for one in own if (place := one.data_ptr())])
        return cls(graph, pool, copies, results, copied, Hold(blocks, kept), places)

    def is_free(self) -> bool:
        """Whether nobody holds a result of the last replay, or of another recording in the same memory."""
        return self.hold.is_free()

    def is_outgrown(self) -> bool:
        """Whether one that is made now would share more memory with others, and nobody holds anything of this one."""
        return any(block.is_outgrown for block in self.hold.blocks) and self.is_free()


class Places:
    """Addresses of a recording, counted among those of all as long as it is there."""

    def __init__(self, addresses: Counter[int], mine: list[int]) -> None:
        self._addresses, self._mine = addresses, mine
        addresses.update(mine)

    def __del__(self) -> None:
        for address in self._mine:
            self._addresses[address] -= 1
            if self._addresses[address] <= 0:
                self._addresses.pop(address, None)


class Pool:
    """Memory that is handed from recording to recording; it is given back when the last of them is gone.

    torch ends a pool with the last graph in it, and cannot begin it again: an empty graph keeps it.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self._keep = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the graph is empty
            self._keep.capture_begin(pool=self.handle, capture_error_mode="thread_local")
            self._keep.capture_end()


Launch = Callable[[list[Any], list[torch.Tensor]], list[Any]]
Captured = tuple[Any, Pool | None, list[Any]]


class Recorder(Protocol):
    """Who keeps recordings."""

    def forget_outgrown(self) -> None: ...
    def forget_places(self) -> None: ...


class Device:
    """What the recordings of one device share.

    addresses: of results, which are where a recording put them at each of its replays. memory: of results. recorders:
    all that have recordings in it. stream: of the first recording; replays run on no other. lock: held while one of
    them is begun.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.side = torch.cuda.Stream(index)
        self.lock = threading.Lock()
        self.stream: int | None = None
        self.addresses: Counter[int] = Counter()
        self.recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
        self.memory = ResultMemory(self.forget_outgrown)
        self._pool: Callable[[], Pool | None] = lambda: None

    def forget_outgrown(self) -> None:
        """Give the memory of outgrown blocks back to the driver, and what plain runs have left in torch's cache."""
        recorders = [*self.recorders]
        for one in recorders:
            one.forget_outgrown()
        for one in recorders:
            one.forget_places()
        torch.cuda.empty_cache()

    def capture(self, launch: Launch, given: list[Any], memory: list[torch.Tensor], *, shares: bool) -> Captured:
        """The graph of what `launch(given, memory)` launches, which does not run; its pool if shared; the results."""
        with torch.cuda.device(self.index), torch.cuda.stream(self.side):
            pool = self.pool() if shares else None
            graph = torch.cuda.CUDAGraph()
            handle = (pool.handle,) if pool is not None else ()
            graph.capture_begin(*handle, capture_error_mode="thread_local")
            try:
                made = launch(given, memory)
            except BaseException:
                with contextlib.suppress(RuntimeError):  # says again that the capture failed
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph, pool, made

    def pool(self) -> Pool:
        """The shared pool; a new one where the last recording in it is gone."""
        found = self._pool()
        if found is None:
            found = Pool()
            self._pool = weakref.ref(found)
        return found


@lru_cache(maxsize=64)
def device_of_recordings(index: int) -> Device:
    """What the recordings of a device share."""
    return Device(index)


class Window(NamedTuple):
    """An output in the memory of `root`: a tensor of `type`, `distance` bytes after the first element of that."""

    root: str
    type: TensorType
    distance: Dim


class Destinations(NamedTuple):
    """unit: made over. given: the memory that it takes behind its inputs, by what is its root in the unit.

    windows: by the number of an output that lies in memory of a library, what it is of that. library: these roots.
    outputs: the numbers of the outputs in each of both kinds of roots. between: of the roots in given memory that no
    output lies in, and of inputs that only kernels and products see, the first and the last instruction that uses it.
    Types and distances are in the symbols of the unit's sizes, until `at` gives these values.
    """

    unit: Unit
    given: Mapping[str, TensorType]
    between: Mapping[str, Span]
    windows: Mapping[int, Window]
    library: Mapping[str, TensorType]
    outputs: Mapping[str, frozenset[int]]

    def at(self, symbols: Symbols) -> Destinations:
        """The same where the symbols have these values; the unit is left as it is."""
        given, library = (replace_symbols(types, symbols) for types in (self.given, self.library))
        windows = {number: Window(*replace_symbols(tuple(one), symbols)) for number, one in self.windows.items()}
        return self._replace(given=given, windows=windows, library=library)

    def shares(self, symbols: Symbols) -> bool:
        """Whether recordings use the shared pool, at sizes that `at` was given."""
        copied = sum(span(type_) for type_ in self.library.values())  # type: ignore[misc]
        return copied <= SHARE * bytes_made(self.unit, symbols)

    def moved(self, made: Sequence[object], memory: Mapping[str, torch.Tensor]) -> list[object]:
        """The outputs of a run, those of libraries copied into `memory` (for each root a tensor of its type)."""
        found = list(made)
        for number, (root, type_, distance) in self.windows.items():
            output = found[number]
            assert isinstance(output, torch.Tensor)
            window = at_distance(memory[root], type_, distance)  # type: ignore[arg-type]
            once = repeats_once(window)
            window[once].copy_(output[once])
            found[number] = window
        return found


def with_destinations(unit: Unit) -> Destinations:
    """Make a unit over that has no choices, so that memory lies where the caller says: a buffer that an output lies in
    becomes an input where the unit took memory for it itself, and so does a large one that nobody sees; products that
    make one are called with `out=`. What a library takes memory for stays the library's.

    >>> # outputs: c = a @ b, which `aten.mm.default` makes, and becomes an input that `aten.mm.out` writes
    """
    homes = plan_memory(unit)
    outputs = [(number, output.name) for number, output in enumerate(unit.outputs) if isinstance(output, Ref)]
    roots = dict.fromkeys(homes.of[name].root for _, name in outputs)
    between = _between(unit, homes)
    fresh = (*(name for name in roots if homes.of[name].kind == "fresh"), *between)
    windows = {
        number: Window(homes.of[name].root, homes.types[name], homes.distance[name])  # type: ignore[arg-type]
        for number, name in outputs
        if homes.of[homes.of[name].root].kind == "library"
    }
    types = {name: homes.types[name] for name in (*fresh, *(one.root for one in windows.values()))}
    given = {name: types[name] for name in fresh}
    made_over = replace(
        unit,
        inputs=(*unit.inputs, *fresh),
        input_types=(*unit.input_types, *given.values()),  # type: ignore[arg-type]
        written=(*unit.written, *fresh),
        instructions=tuple(_instructions(unit.instructions, frozenset(fresh))),
    )
    library = {one.root: types[one.root] for one in windows.values()}
    between |= {
        name: (0, homes.last_use_of_root[name])
        for name in unit.inputs
        if name in homes.last_use_of_root and name not in homes.escaping
    }
    numbers = {root: frozenset(n for n, name in outputs if homes.of[name].root == root) for root in types}
    return Destinations(made_over, given, between, windows, library, numbers)  # type: ignore[arg-type]


def _between(unit: Unit, homes: Homes) -> dict[str, Span]:
    """When each root is used that has memory of its own and that only kernels and products see."""
    found = {}
    for number, one in enumerate(unit.instructions):
        for name, base, _ in made_buffers(one):
            if base is None and homes.of[name].kind == "fresh" and name not in homes.escaping:
                found[name] = (number, homes.last_use_of_root[name])
    return found


def _instructions(instructions: Sequence[Instruction], given: frozenset[str]) -> Iterator[Instruction]:
    for one in instructions:
        match one:
            case Allocate(buffer, _, None) | Release(buffer) if buffer in given:
                continue
            case CallExtern(target, args, kwargs, results) if given.intersection(results):
                assert target in WRITES_ITS_RESULT
                name = f"{target.removesuffix('.default')}.out"
                yield CallExtern(name, args, {**kwargs, "out": Ref(results[0])}, ())
            case _:
                yield one


def bytes_made(unit: Unit, symbols: Symbols) -> int:
    """Of all that a unit makes: about what its kernels write."""
    every = (made for one in unit.instructions if not isinstance(one, MakeView) for made in made_buffers(one))
    return sum(evaluate(span(type_), symbols) for _, _, type_ in every if type_ is not None)
