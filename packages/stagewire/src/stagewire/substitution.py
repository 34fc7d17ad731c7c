"""Replace or find size expressions, wherever they stand in a document or a part of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from stagewire.expr import Dim, Expr, dim_of, polynomial_of, symbols_of

Part = TypeVar("Part")


def map_sizes(part: Part, visit: Callable[[Expr], Dim]) -> Part:
    """`part` (a document, graph, type, argument or a tuple of such) with `visit(size)` for each size expression in it.

    >>> from stagewire.types import contiguous
    >>> str(map_sizes(contiguous("float32", (Expr("n"), 3)), lambda size: 4))
    'f32[4, 3]'
    """
    return _mapped(part, visit)  # type: ignore[no-any-return]


def replace_symbols(part: Part, meanings: Mapping[str, Dim]) -> Part:
    """`part` with these sizes in the place of symbols.

    >>> from stagewire.types import contiguous
    >>> str(replace_symbols(contiguous("float32", (Expr("n"), Expr("m"))), {"n": Expr("m") * 2}))
    'f32[2*m, m]'
    """
    known = {name: polynomial_of(size) for name, size in meanings.items()}
    return map_sizes(part, lambda size: dim_of(polynomial_of(size).substitute(known)))


def symbols_in(part: Any) -> set[str]:
    """The symbols of all size expressions in a part.

    >>> from stagewire.types import contiguous
    >>> sorted(symbols_in((contiguous("float32", (Expr("n"), 3)), Expr("m"))))
    ['m', 'n']
    """
    found: set[str] = set()

    def note(size: Expr) -> Expr:
        found.update(symbols_of(size))
        return size

    _mapped(part, note)
    return found


def _mapped(value: Any, visit: Callable[[Expr], Dim]) -> Any:
    if isinstance(value, Expr):
        return visit(value)
    if isinstance(value, tuple):
        items = tuple([_mapped(item, visit) for item in value])
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if isinstance(value, dict):
        made = {key: _mapped(item, visit) for key, item in value.items()}
        return made if any(made[key] is not item for key, item in value.items()) else value
    if isinstance(value, msgspec.Struct):
        changed = {}
        for name in value.__struct_fields__:
            old = getattr(value, name)
            new = _mapped(old, visit)
            if new is not old:
                changed[name] = new
        return msgspec.structs.replace(value, **changed) if changed else value
    return value
