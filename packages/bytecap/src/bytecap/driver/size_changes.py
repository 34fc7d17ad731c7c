"""What changed between the calls of a frame: the sizes and ints that the next capture makes symbols of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bytecap._evalframe import FrameView, GuardProgram
from bytecap.errors import FixedSizesNeeded
from bytecap.graph.size_policy import SizePolicy
from stagewire.capture import Capture, Equals, Reading, Relation, Source, Symbol, TensorIs
from stagewire.errors import StageError
from stagewire.expr import symbols_of


class _Missing:
    """No value."""


_MISSING = _Missing()


def with_changes(
    policy: SizePolicy, program: GuardProgram | None, view: FrameView, symbols: tuple[Symbol, ...]
) -> SizePolicy:
    """The policy for the next capture of a frame for which `program`, of a capture with `symbols`, does not hold."""
    if not policy.enabled or program is None:
        return policy
    found = list(_checked(program, view))
    return policy.with_changes(
        [place for guard, value, _ in found if isinstance(guard, TensorIs) for place in _changed_dims(guard, value)],
        [guard.source for guard, value, owner in found if _is_changed_number(guard, value, owner)],
        _fixed_numbers(program, view, symbols),
    )


def with_sizes_of_before(policy: SizePolicy, programs: list[GuardProgram | None], view: FrameView) -> SizePolicy:
    """And the sizes that differ from those of earlier captures: the last one may have been of another case, which these
    tensors took no part in (the first token of a text, when the second of another one comes)."""
    if not policy.enabled:
        return policy
    found = [item for program in programs if program is not None for item in _checked(program, view)]
    dims = [place for guard, value, _ in found if isinstance(guard, TensorIs) for place in _changed_dims(guard, value)]
    return policy.with_changes(dims, ())


def _checked(program: GuardProgram, view: FrameView) -> Iterator[tuple[Any, Any, Any]]:
    """(guard, the value it looks at now, what that was read from)."""
    nodes = program.spec[0]
    values = program.values(view, _MISSING)
    for (parent, _, _, checks, _), value in zip(nodes, values, strict=True):
        for check in checks:
            yield program.guards[check[2]], value, None if parent < 0 else values[parent]


def _changed_dims(guard: TensorIs, value: Any) -> Iterator[tuple[Source, int]]:
    if not isinstance(value, torch.Tensor) or value.dim() != len(guard.type.shape):
        return
    sizes_differ = False
    for dim, (before, now) in enumerate(zip(guard.type.shape, value.shape, strict=True)):
        if isinstance(before, int) and before != now:
            sizes_differ = True
            yield guard.source, dim
    if sizes_differ or not all(isinstance(size, int) for size in guard.type.shape):
        return  # strides mostly follow from sizes
    for dim, (before, now) in enumerate(zip(guard.type.stride, value.stride(), strict=True)):
        if isinstance(before, int) and before != now:
            yield guard.source, -1 - dim


def _is_changed_number(guard: Any, value: Any, owner: Any) -> bool:
    """A float, or an int that is no setting of a module: those are few, and decide about the program."""
    if not isinstance(guard, Equals) or isinstance(guard.source, Reading) or type(value) is not type(guard.value):
        return False
    is_open = type(value) is float or (type(value) is int and not isinstance(owner, torch.nn.Module))
    return is_open and value != guard.value


def _fixed_numbers(program: GuardProgram, view: FrameView, symbols: tuple[Symbol, ...]) -> list[Source]:
    """Ints that were symbols, and that the program fixed all the same."""
    failure = program.failure(view)
    if failure is None or failure[0] not in range(len(program.guards)):
        return []
    guard = program.guards[failure[0]]
    if not isinstance(guard, Relation) or guard.operator != "==":
        return []
    used = symbols_of(guard.left) | symbols_of(guard.right)
    sources = {symbol.name: symbol.source for symbol in symbols}
    return [source for name in used if (source := sources.get(name)) is not None and not isinstance(source, Reading)]


def needs_constants(capture: Capture, error: StageError) -> FixedSizesNeeded | None:
    """What to raise where a backend needs floats of the capture as constants."""
    sources = tuple(item.source for item in capture.inputs if item.value.name in error.fixed_inputs)
    if not sources:
        return None
    needed = FixedSizesNeeded(error.message, where=error.where)
    needed.sources = sources
    return needed
