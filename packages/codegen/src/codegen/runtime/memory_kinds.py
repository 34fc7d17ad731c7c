"""Where each buffer of a unit lives: the caller's memory, the arena, a tensor of its own, or a library's result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Literal, NamedTuple

from codegen.runtime.externs import NATIVE, PHILOX_STATE, WRITES_ITS_RESULT
from stagewire.expr import Dim
from stagewire.graph import Ref, references
from stagewire.program import Allocate, CallExtern, MakeView, Unit, made_buffers, mentioned_buffers
from stagewire.types import ITEM_SIZE, TensorType, extent


class Lifetime(NamedTuple):
    """`size` bytes needed from instruction `start` to instruction `end`, both included."""

    name: str
    size: Dim
    start: int
    end: int


Kind = Literal["input", "arena", "fresh", "library", "number"]


class Home(NamedTuple):
    """`root`: the buffer that first owned the memory; `kind`: how that one got it. (A "number" is one on the CPU, in a
    unit of a GPU, which only kernels see: it has a place in each frame.)"""

    root: str
    kind: Kind


class Homes(NamedTuple):
    """For every buffer its home and type (None: unknown result of a call), where it is used, where its memory ends.

    `device`: the unit's.
    `distance`: bytes from the first element of its root to its own.
    `lifetimes`: of the roots in the arena.
    `handled`: buffers that calls or the caller need as tensors (the others are addresses for kernels).
    `escaping`: roots of memory that may outlive the run: outputs, and what Python-level calls saw.
    """

    device: str
    of: dict[str, Home]
    types: dict[str, TensorType | None]
    distance: dict[str, Dim]
    last_use: dict[str, int]
    last_use_of_root: dict[str, int]
    handled: frozenset[str]
    escaping: frozenset[str]
    lifetimes: tuple[Lifetime, ...]


LARGE = {"cuda": 2 << 20}
"""Bytes from which a buffer is no part of the arena, by device."""


def is_native(call: CallExtern, device: str) -> bool:
    """Whether the native executor of a unit on `device` may make this call itself."""
    if call.target == PHILOX_STATE:
        return device.startswith("cuda") and bool(call.result_types)
    if any(type_ is not None and type_.device != device for type_ in call.result_types):
        return False
    return call.target in NATIVE and (call.target not in WRITES_ITS_RESULT or bool(call.result_types))


def device_of(unit: Unit) -> str:
    """The device that a unit is for; that of a CUDA device may have memory on the CPU beside."""
    return min({type_.device for type_ in stated(unit)} - {"cpu"}, default="cpu")


def stated(unit: Unit) -> Iterator[TensorType]:
    """The types that a unit states."""
    yield from (type_ for type_ in unit.input_types if isinstance(type_, TensorType))
    made = (type_ for one in unit.instructions for _, _, type_ in made_buffers(one))
    yield from (type_ for type_ in made if type_ is not None)


def plan_memory(unit: Unit) -> Homes:
    """Decide for every buffer of a unit."""
    device = device_of(unit)
    roots, types, first = _definitions(unit)
    last = {name: position for position, one in enumerate(unit.instructions) for name in mentioned_buffers(one)}
    end = len(unit.instructions)
    outputs = {name for output in unit.outputs for name in references(output)}
    last |= dict.fromkeys(outputs, end)
    handled, seen = set(outputs), set(outputs)
    for one in unit.instructions:
        if isinstance(one, CallExtern):
            names = {name for arg in (*one.args, *one.kwargs.values()) for name in references(arg)}
            handled |= names | {name for name in one.results if name}
            seen |= set() if is_native(one, device) else names
    escaping = frozenset(roots[name] for name in seen)
    kinds = _kinds(unit, escaping, device)
    last_of_root: dict[str, int] = {}
    for name, root in roots.items():
        last_of_root[root] = max(last_of_root.get(root, 0), last.get(name, 0))
    lives = {
        name: Lifetime(name, span(types[name]), first[name], last_of_root[name])
        for name, kind in sorted(kinds.items())
        if kind != "input" and types.get(name) is not None
    }
    seen_roots = {roots[name] for name in handled}
    kinds |= {
        name: "number"
        for name in kinds.keys() - seen_roots
        if kinds[name] == "fresh" and (type_ := types[name]) is not None
        if (type_.device, type_.shape) == ("cpu", ()) != (device, ()) and ITEM_SIZE[type_.dtype] <= 8
    }
    if device.partition(":")[0] in LARGE:
        kinds |= dict.fromkeys(_apart(lives, kinds), "fresh")
    of = {name: Home(root, kinds[root]) for name, root in roots.items()}
    lifetimes = tuple(one for name, one in lives.items() if kinds[name] == "arena")
    return Homes(
        device, of, types, _distances(unit, types), last, last_of_root, frozenset(handled), escaping, lifetimes,
    )  # fmt: skip


def _definitions(unit: Unit) -> tuple[dict[str, str], dict[str, TensorType | None], dict[str, int]]:
    """The root and type of every buffer, and the instruction that makes it."""
    given = zip(unit.inputs, unit.input_types, strict=True)
    types: dict[str, TensorType | None] = {name: type_ for name, type_ in given if isinstance(type_, TensorType)}
    roots = {name: name for name in types}
    first = dict.fromkeys(types, 0)
    for position, one in enumerate(unit.instructions):
        for name, base, type_ in made_buffers(one):
            roots[name] = name if base is None else roots[base]
            types[name] = type_
            first[name] = position
    return roots, types, first


def _distances(unit: Unit, types: dict[str, TensorType | None]) -> dict[str, Dim]:
    """How far each buffer begins from its root: a view's offset counts from where the storage of its base begins."""
    found: dict[str, Dim] = dict.fromkeys(unit.inputs, 0)
    for one in unit.instructions:
        for name, base, type_ in made_buffers(one):
            found[name] = 0
            if base is not None:
                assert type_ is not None
                if not isinstance(one, MakeView):  # takes the memory over from its first element on
                    found[name] = found[base]
                    continue
                offset, before = type_.storage_offset, types[base]
                start = 0 if before is None else before.storage_offset * ITEM_SIZE[before.dtype]
                found[name] = found[base] + offset * ITEM_SIZE[type_.dtype] - start
    return found


def _kinds(unit: Unit, escaping: frozenset[str], device: str) -> dict[str, Kind]:
    """How each root gets its memory; the arena lies on the device of the unit."""
    kinds: dict[str, Kind] = dict.fromkeys(unit.inputs, "input")
    for one in unit.instructions:
        match one:
            case Allocate(buffer, type_, None):
                kinds[buffer] = "fresh" if buffer in escaping or _is_alone(type_, device) else "arena"
            case CallExtern(target=target, results=results):
                written = target in WRITES_ITS_RESULT and is_native(one, device)
                types = one.result_types or (None,) * len(results)
                for name, made in zip(results, types, strict=True):
                    alone = name in escaping or (made is not None and _is_alone(made, device))
                    kinds[name] = "library" if not written else "fresh" if alone else "arena"
    return kinds


def _apart(lives: dict[str, Lifetime], kinds: dict[str, Kind]) -> tuple[str, ...]:
    """The buffers of the arena, two at most, but for which it would not be there where most other memory is."""
    arena = [one for name, one in lives.items() if kinds[name] == "arena"]
    changes: dict[int, int] = {}
    for name, one in lives.items():
        if kinds[name] != "arena" and isinstance(one.size, int):
            changes[one.start] = changes.get(one.start, 0) + one.size
            changes[one.end + 1] = changes.get(one.end + 1, 0) - one.size
    positions = sorted(changes)
    alive = list(accumulate(changes[position] for position in positions))
    if not alive:
        return ()
    most = alive.index(max(alive))
    start, end = positions[most], positions[most + 1] - 1
    beside = tuple(one.name for one in arena if one.start <= end and start <= one.end)
    rest = [one for one in arena if one.name not in beside]
    is_gone = all(one.end < start for one in rest) or all(one.start > end for one in rest)
    return beside if rest and is_gone and len(beside) <= 2 else ()


def _is_alone(type_: TensorType, device: str) -> bool:
    """Whether memory is taken from torch's allocator for this buffer alone: all that is not on the unit's device, and
    what is large on a device whose allocator is quick. Then it is there only while it is needed, beside the results of
    libraries, where the arena is there all the time."""
    if type_.device != device:
        return True
    size = span(type_)
    return isinstance(size, int) and size >= LARGE.get(device.partition(":")[0], size + 1)


def span(type_: TensorType | None) -> Dim:
    """Bytes from the first element of a tensor to the end of its last (enough of them where a symbolic size is 0)."""
    assert type_ is not None
    return extent(type_) * ITEM_SIZE[type_.dtype]


def single_device(unit: Unit) -> str | None:
    """The device of a unit whose outputs are buffers, literals or sizes; None for other units.

    A CUDA device may have memory of the CPU beside its own.
    """
    if any(not isinstance(output, Ref) and any(True for _ in references(output)) for output in unit.outputs):
        return None
    return device_of(unit) if len({type_.device for type_ in stated(unit)} - {"cpu"}) <= 1 else None
