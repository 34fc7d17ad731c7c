"""Guards that a user has dropped: torch.compile's `guard_filter_fn`.

What a graph is given is guarded all the same, and so are the relations of its sizes: machine code reads by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from bytecap._evalframe import GuardProgram
from bytecap.errors import GuardError
from bytecap.guards.compile import Scope
from bytecap.guards.kinds import KINDS
from bytecap.guards.printing import MISSING, print_source
from stagewire import capture
from stagewire.capture import Guard, Source


@dataclass(frozen=True)
class GuardEntry:
    """A guard as a filter sees it: torch's GuardFilterEntry.

    name: the Python expression that is guarded ("" for none). value: what it was (`has_value`: there was one).
    guard_type: torch's name of the kind. is_global: it is read from a global name. guard: the document's own.
    orig_guard: has what torch's filters ask, `source.is_unspecialized_nn_module()` and `..._builtin_nn_module()`.
    """

    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    guard: Guard
    orig_guard: Any


Filter = Callable[[Sequence[GuardEntry]], Sequence[bool]]
"""Which guards stay: a bool for each entry, in order."""


def filtered(program: GuardProgram, scope: Scope, inputs: Sequence[Source], keep: Filter) -> list[Guard]:
    """The guards of a program that `keep` leaves. inputs: where the graph reads what it is given.

    Raises `GuardError` where the filter gives another number of answers than there are guards.
    """
    values = program.values(scope, MISSING)
    nodes = reversed(list(enumerate(program.spec[0])))  # conditions, on the last, may be parts of earlier guards
    places = {check[2]: place for place, node in nodes for check in node[3]}
    needed = set(inputs)  # (a relation reads nothing by itself)
    open_ = [
        (n, guard) for n, guard in enumerate(program.guards) if not needed.issuperset(KINDS[type(guard)].sources(guard))
    ]
    answers = list(keep([_entry(guard, list(_way(program, values, places.get(n, -1)))) for n, guard in open_]))
    if len(answers) != len(open_):
        raise GuardError(f"guard_filter_fn gave {len(answers)} answers for {len(open_)} guards")
    dropped = {n for (n, _), answer in zip(open_, answers, strict=True) if not answer}
    return [guard for n, guard in enumerate(program.guards) if n not in dropped]


def _way(program: GuardProgram, values: Sequence[object], place: int) -> Iterator[object]:
    """The value at a node, and those that it was read through."""
    while place >= 0:
        yield values[place]
        place = program.spec[0][place][0]


def _entry(guard: Guard, way: list[object]) -> GuardEntry:
    row = KINDS[type(guard)]
    source = root = row.sources(guard)[0]
    while getattr(root, "base", None) is not None:
        root = root.base  # type: ignore[union-attr]
    holder = next((type(value) for value in way if isinstance(value, torch.nn.Module)), None)
    in_torch = holder is not None and holder.__module__.startswith(("torch.nn.", "torch.ao."))
    has_value = source is not None and way[0] is not MISSING
    asked = SimpleNamespace(
        is_unspecialized_nn_module=lambda: holder is not None, is_unspecialized_builtin_nn_module=lambda: in_torch
    )
    return GuardEntry(
        name="" if source is None else print_source(source),
        has_value=has_value,
        value=way[0] if has_value else None,
        guard_type=row.torch_name,
        derived_guard_types=(),
        is_global=isinstance(root, capture.Global | capture.Builtin),
        guard=guard,
        orig_guard=SimpleNamespace(name="" if source is None else print_source(source), source=asked),
    )
