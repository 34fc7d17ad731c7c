"""Which sizes of a unit with symbolic sizes are recorded: those that come again, so many of them at a time.

call ::= plain              sizes that come for the first time, or one set too many
       | call at the sizes  one callable for each set of sizes, made when they come for the second time

Where as many sets are kept as may be, another takes the place of the one that has not come for longest, if that was
PATIENCE calls ago for each set that is kept: sizes that take turns do not drive each other out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from codegen.runtime.recordable import Recordable
from codegen.runtime.symbols import Symbols, symbol_reader

PATIENCE = 16
REMEMBERED = 4096
"""Sets of sizes that came once, of which that is remembered."""

Sizes = tuple[int, ...]
Run = Callable[..., Any]


class BySizes:
    """A unit with symbolic sizes as a callable.

    make: the callable for one set of sizes, which takes what `Replayed` takes. tell: is told once that more than `most`
    sets came.
    """

    def __init__(
        self, recordable: Recordable, most: int, make: Callable[[Symbols], Run], tell: Callable[[str], None]
    ) -> None:
        self._run, self._most, self._make, self._tell = recordable.run, most, make, tell
        self._read = symbol_reader(recordable.unit)
        self._kept: dict[Sizes, Run] = {}
        self._last: dict[Sizes, int] = {}
        self._once: dict[Sizes, None] = {}
        self._calls = 0
        self._told = False
        self._lock = threading.RLock()  # a finalizer may call the program anywhere

    def __call__(self, *inputs: Any) -> Any:
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else inputs
        if not given:
            self._kept.clear()
            return self._run(*inputs)
        symbols = self._read(given)
        sizes = tuple(symbols.values())
        self._calls += 1
        run = self._kept.get(sizes) or self._new(sizes, symbols)
        if run is None:
            return self._run(*inputs)
        self._last[sizes] = self._calls
        return run(*inputs)

    def _new(self, sizes: Sizes, symbols: Symbols) -> Run | None:
        """What runs these sizes from now on; None where they run plain."""
        with self._lock:
            if sizes not in self._once:
                self._once[sizes] = None
                if len(self._once) > REMEMBERED:
                    del self._once[next(iter(self._once))]
                return None
            if len(self._kept) >= self._most and not self._made_room():
                return None
            return self._kept.setdefault(sizes, self._make(symbols))

    def _made_room(self) -> bool:
        """Whether the sizes that have not come for longest were let go of."""
        oldest = min(self._kept, key=lambda sizes: self._last.get(sizes, 0), default=None)
        if oldest is not None and self._calls - self._last.pop(oldest, 0) > PATIENCE * self._most:
            del self._kept[oldest]
            return True
        if not self._told:
            self._told = True
            self._tell(f"it came with more than {self._most} sets of sizes, and each of these is still in use")
        return False
