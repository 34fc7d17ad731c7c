"""Programs that are made when a compiled one already runs: no guard can be added for what they assume of sizes.

A gradient of a gradient is such a one. It serves all sizes as long as what it assumes holds for them; for others the
program is made again with fixed sizes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from stagewire.capture import Capture, Relation, holds
from stagewire.expr import evaluate
from stagewire.graph import Value
from stagewire.substitution import map_sizes
from stagewire.symbols import size_reader

Callee = Callable[..., tuple[Any, ...]]


def with_sizes(capture: Capture, sizes: dict[str, int]) -> Capture:
    """The capture for one value of each of its symbols."""
    guards = tuple(guard for guard in capture.guards if not isinstance(guard, Relation))
    bare = replace(capture, guards=guards, symbols=())
    return map_sizes(bare, lambda size: evaluate(size, sizes))


class SizeSpecialisations:
    """`general(*inputs)` where `assumes` holds of the sizes of `inputs`, else what `make` gives for these sizes."""

    def __init__(
        self,
        general: Callee,
        inputs: Sequence[Value],
        assumes: Sequence[Relation],
        make: Callable[[dict[str, int]], Callee],
    ) -> None:
        self.general, self.assumes, self.make = general, tuple(assumes), make
        self._read = size_reader(inputs)
        self._made: dict[tuple[tuple[str, int], ...], Callee] = {}
        self._lock = threading.RLock()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        sizes = {} if self._read is None else self._read(inputs)
        if all(holds(relation, sizes) for relation in self.assumes):
            return self.general(*inputs)
        key = tuple(sorted(sizes.items()))
        with self._lock:
            if key not in self._made:
                self._made[key] = self.make(sizes)
        return self._made[key](*inputs)
