"""Elements that nobody reads, whose computation may raise: `x[index][:2]` is an error of the whole index.

A definition that stands in the place of its reads is computed at the points that read it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loopir.passes.definitions import Definition
from loopir.schedule import Schedule, axis_sizes
from stagewire.expr import Dim
from stagewire.index import axes_of, has_values, values_of
from stagewire.loop import Index, Kernel, Load, Statement
from stagewire.loop_ops import may_raise
from stagewire.statements import results, statements_of, used_axes, used_values
from stagewire.types import numel

Virtual = Mapping[str, Definition]


class UnreadChecks:
    """Asked of the definitions of a schedule in order: whether some of their elements may raise, and are not read.

    dims: for a buffer the dimensions along which it changes what may raise.
    """

    def __init__(self, schedule: Schedule, definitions: Mapping[str, Definition]) -> None:
        self.dims: dict[str, frozenset[int]] = {}
        self.buffers = schedule.buffers
        self._readers: dict[str, list[tuple[Kernel, Load]]] = {}
        nests = [item for item in schedule.items if isinstance(item, Kernel)]
        self._is_needed = any(
            may_raise(statement)
            for definition in definitions.values()
            if self.buffers[definition.buffer].type.device == "cpu"
            for piece in definition.pieces
            for statement in piece.statements
        )
        for nest in nests if self._is_needed else ():
            for statement in statements_of(nest):
                if isinstance(statement, Load):
                    self._readers.setdefault(statement.buffer, []).append((nest, statement))

    def of(self, definition: Definition, virtual: Virtual) -> bool:
        """Whether elements of a buffer have checks that no reader makes, once `virtual` stand where they are read."""
        name = definition.buffer
        if not self._is_needed or self.buffers[name].type.device != "cpu":
            return False
        dims = frozenset(self._checked(definition, virtual))
        if not dims and not self._raises(definition, virtual):
            return False
        self.dims[name] = dims
        shape = self.buffers[name].type.shape
        return not any(_reads_all(nest, read, dims, shape) for nest, read in self._readers.get(name, ()))

    def _raises(self, definition: Definition, virtual: Virtual) -> bool:
        return any(self._is_checked(s, virtual) for piece in definition.pieces for s in piece.statements)

    def _is_checked(self, statement: Statement, virtual: Virtual) -> bool:
        if isinstance(statement, Load):
            return statement.buffer in virtual and statement.buffer in self.dims
        return may_raise(statement)

    def _checked(self, definition: Definition, virtual: Virtual) -> Iterator[int]:
        """The dimensions of a definition along which it changes what may raise."""
        for piece in definition.pieces:
            axes = _axes_of_values(piece.statements)
            found: set[str] = set()
            for statement in piece.statements:
                if not self._is_checked(statement, virtual):
                    continue
                if isinstance(statement, Load):
                    for dim in self.dims[statement.buffer]:
                        found |= _axes_of_index(statement.index[dim], axes)
                    found |= axes.get(statement.mask.name, set()) if statement.mask is not None else set()
                else:
                    found |= set().union(*(axes.get(name, set()) for name in used_values(statement)))
            for dim, axis in enumerate(piece.places):
                if (axis is not None and axis.name in found) or (found and len(definition.pieces) > 1):
                    yield dim


def _axes_of_values(statements: Sequence[Statement]) -> dict[str, set[str]]:
    """For each value the axes with which it changes."""
    found: dict[str, set[str]] = {}
    for statement in statements:
        axes = used_axes(statement).union(*(found.get(name, set()) for name in used_values(statement)))
        for name in results(statement):
            found[name] = axes
    return found


def _axes_of_index(index: Index, values: Mapping[str, set[str]]) -> set[str]:
    return set(axes_of(index)).union(*(values.get(name, set()) for name in values_of(index)))


def _reads_all(nest: Kernel, read: Load, dims: frozenset[int], shape: Sequence[Dim]) -> bool:
    """Whether a nest reads the buffer at every place along `dims`: as many points as places, at no place of data."""
    coordinates = [read.index[dim] for dim in sorted(dims)]
    if any(map(has_values, coordinates)):
        return False
    sizes = axis_sizes(nest)
    axes = {name for index in coordinates for name in axes_of(index)}
    masked = set() if read.mask is None else _axes_of_values(tuple(statements_of(nest))).get(read.mask.name, set())
    if not axes.isdisjoint(masked):
        return False
    return numel(tuple([sizes[name] for name in axes])) == numel(tuple([shape[dim] for dim in sorted(dims)]))
