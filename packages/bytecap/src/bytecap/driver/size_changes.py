"""What changed between the calls of a frame: sizes and ints that the next capture makes symbols of, values that it
leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from bytecap._evalframe import Entry, FrameView, GuardProgram
from bytecap.breaks.flow import slot
from bytecap.evaluator.frame import Frame
from bytecap.graph.size_policy import SizePolicy
from bytecap.guards.guard_set import HAS_UPCOMING, UPCOMING
from bytecap.guards.printing import MISSING
from bytecap.nodes.call_arguments import has_unbacked
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.numbers.symbolic import SymbolicNumber
from bytecap.torch_capabilities import TORCH
from stagewire import capture
from stagewire.expr import symbols_of

Open = tuple[capture.Source, int | None]
"""(source of a tensor, dimension), or (source of a number, None)."""


def with_changes(
    policy: SizePolicy, known: Sequence[Entry], view: FrameView, symbols: tuple[capture.Symbol, ...]
) -> SizePolicy:
    """The policy for the next capture of a frame for which none of the `known` ones holds, the last of which has
    `symbols`.

    Sizes that differ from those of earlier captures count too: the last one may have been of another case, which these
    tensors took no part in (the first token of a text, when the second of another one comes).
    """
    if not policy.enabled:
        return policy
    found = [list(_checked(entry.guard, view)) for entry in known]
    tensors = [(guard, value) for row in found for guard, value, _ in row if isinstance(guard, capture.TensorIs)]
    dims = [place for guard, value in tensors for place in _changed_dims(guard, value)]
    changed = [guard.source for guard, value, owner in found[0] if _is_changed_number(guard, value, owner)]
    return policy.with_changes(dims, changed, _fixed_numbers(known[0], view, symbols))


def decided_by_data(frame: Frame) -> frozenset[Open]:
    """What of the frame's variables and stack the data decides: other calls have others.

    A tensor on the stack may be what a loop starts to iterate over, so that its place is an iterator's from there on.
    """
    found = set[Open]()
    on_stack = {slot(at): value for at, value in enumerate(frame.stack)}
    for name, value in {**frame.locals, **on_stack}.items():
        source = capture.Local(name)
        if isinstance(value, TensorValue):
            places = [dim for dim, size in enumerate(value.abstract.meta.shape) if has_unbacked(size)]
            places += [-1 - dim for dim, step in enumerate(value.abstract.meta.stride) if has_unbacked(step)]
            found.update((source, place) for place in places)
            if name in on_stack:
                item = capture.Reading(UPCOMING, source, (0,))
                found.update((item, place + (-1 if place > 0 else 1)) for place in places if place not in (0, -1))
        elif isinstance(value, SymbolicNumber) and value.is_unbacked:
            found.add((source, None))
    return frozenset(found)


def with_open(policy: SizePolicy, found: Iterable[Open], names: Iterable[str]) -> SizePolicy:
    """The policy for what starts behind a break and is given these locals, of which some are ever others."""
    if not policy.enabled:
        return policy
    given = {capture.Local(name) for name in names}
    kept = [(source, dim) for source, dim in found if given.intersection((source, getattr(source, "base", None)))]
    sizes = [(source, dim) for source, dim in kept if dim is not None]
    numbers = policy.of_any_value.union(source for source, dim in kept if dim is None)
    return replace(policy.with_changes(sizes, numbers), of_any_value=numbers)


def _checked(program: GuardProgram, view: FrameView) -> Iterator[tuple[Any, Any, Any]]:
    """(guard, the value it looks at now, what that was read from)."""
    nodes = program.spec[0]
    values = program.values(view, MISSING)
    for (parent, _, _, checks, _), value in zip(nodes, values, strict=True):
        for check in checks:
            yield program.guards[check[2]], value, None if parent < 0 else values[parent]


def _changed_dims(guard: capture.TensorIs, value: Any) -> Iterator[tuple[capture.Source, int]]:
    if not isinstance(value, torch.Tensor):
        return
    with TORCH.no_subclass_function():
        shape, stride = value.shape, value.stride()
    if len(shape) != len(guard.type.shape):
        return
    sizes_differ = False
    for dim, (before, now) in enumerate(zip(guard.type.shape, shape, strict=True)):
        if isinstance(before, int) and before != now:
            sizes_differ = True
            yield guard.source, dim
    if sizes_differ or not all(isinstance(size, int) for size in guard.type.shape):
        return  # strides mostly follow from sizes
    for dim, (before, now) in enumerate(zip(guard.type.stride, stride, strict=True)):
        if isinstance(before, int) and before != now:
            yield guard.source, -1 - dim


def _is_changed_number(guard: Any, value: Any, owner: Any) -> bool:
    """A float, or an int that is no setting of a module: those are few, and decide about the program."""
    if not isinstance(guard, capture.Equals) or _is_question(guard.source) or type(value) is not type(guard.value):
        return False
    is_open = type(value) is float or (type(value) is int and not isinstance(owner, torch.nn.Module))
    return is_open and value != guard.value


def _failure(entry: Entry, view: FrameView) -> tuple[Any, bool, Any]:
    """The first guard of an entry that does not hold (None: an input is missing), whether it found a value, which."""
    index, found, value = entry.guard.failure(view) or (-1, False, None)
    return entry.guard.guards[index] if index in range(len(entry.guard.guards)) else None, found, value


def _fixed_numbers(last: Entry, view: FrameView, symbols: tuple[capture.Symbol, ...]) -> list[capture.Source]:
    """Ints that were symbols, and that the program fixed all the same."""
    guard = _failure(last, view)[0]
    if not isinstance(guard, capture.Relation) or guard.operator != "==":
        return []
    used = symbols_of(guard.left) | symbols_of(guard.right)
    sources = {symbol.name: symbol.source for symbol in symbols}
    return [source for name in used if (source := sources.get(name)) is not None and not _is_question(source)]


def _is_question(source: capture.Source) -> bool:
    """Whether what is read there is an answer to a question, and no number that lies there."""
    return isinstance(source, capture.Reading) and source.function != UPCOMING


# -- values that differ from call to call, and would make a new capture each time: a float that was an argument once, a
# number that the code itself counts up, and any number, text or size of a container that was fixed several times, is
# not fixed again: the captures that follow leave what uses it to the plain code around them

_KINDS = (int, float, str)
# How many captures a code object has, at most, before values that differ are left open.
_PATIENCE = 4


def changed_values(
    known: Sequence[Entry], view: FrameView, counted: frozenset[capture.Source], limit: int
) -> frozenset[capture.Source]:
    """Where the value is that alone makes the last capture miss, if it changes too often.

    counted: where the numbers are that the last capture itself counts up. limit: of captures; the last of them leaves
    open what object an argument is, and the last but one (there is the iterator's end, too) what an iterator gives.
    """
    found = frozenset(_differing_items(known)) if len(known) >= limit - 2 else frozenset()
    first = _missed(_last_of_this_way(known, view), view) if known else None
    if first is None:
        return found
    source, value = first
    if isinstance(source, capture.TypeOf):
        return found | {source} if len(known) == limit - 1 else found
    is_open = source in counted or (isinstance(source, capture.Local) and type(value) is float)
    return found | {source} if is_open or len(known) >= _PATIENCE else found


def _last_of_this_way(known: Sequence[Entry], view: FrameView) -> Entry:
    """The last capture, of those (if there are any) that had as many items of iterators left."""
    for entry in known:
        match _failure(entry, view)[0]:
            case capture.Equals(capture.Reading(function=function)) if function == HAS_UPCOMING:
                continue
        return entry
    return known[0]


def _differing_items(known: Sequence[Entry]) -> Iterator[capture.Source]:
    """The classes of what iterators give, as their places, where captures were made for several."""
    wanted: dict[capture.Source, set[int]] = {}
    for entry in known:
        for node in entry.guard.spec[0]:
            for _, (asked, *_), number in node[3]:
                guard = entry.guard.guards[number]
                if isinstance(guard, capture.TypeIs | capture.IdentityIs) and _is_upcoming(guard.source):
                    wanted.setdefault(guard.source, set()).add(id(asked))
    return (capture.TypeOf(source) for source, asked in wanted.items() if len(asked) > 1)


def _is_upcoming(source: capture.Source) -> bool:
    """Whether it is what an iterator gives, or an item of that."""
    while isinstance(source, capture.Item):
        source = source.base
    return isinstance(source, capture.Reading) and source.function == UPCOMING


def _missed(entry: Entry, view: FrameView) -> tuple[capture.Source, Any] | None:
    """(place, value now) of the first guard that fails, if it fixes a value of a kind that may be left open."""
    guard, found, value = _failure(entry, view)
    match guard if found else None:
        case capture.Equals(source, before) if type(before) is type(value) and type(value) in _KINDS:
            return source, value
        case capture.TypeIs(capture.Local() as source) | capture.IdentityIs(capture.Local() as source) if (
            not isinstance(value, torch.Tensor)
        ):
            return capture.TypeOf(source), value
        case capture.LengthIs(source) | capture.KeysAre(source) | capture.HasKey(source):
            return source, value
    return None
