"""Saved tensors that outlive a backward of some of the results: those of the others may still run.

Autograd has one node for the program, and frees what it saves with the first backward. Eager has a node for each call,
and runs the backward of one result after that of another as long as no node that was freed is needed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aotgrad.higher_order import versions_of

Saved = tuple[torch.Tensor | None, ...]
_OVERWRITTEN = "one of the variables needed for gradient computation has been modified by an inplace operation"


class Held:
    """What a call has saved, behind a backward that has freed it.

    closed: the tangents whose backward needs what was freed. tensors: None where that is all of them.
    """

    def __init__(self, tensors: Saved | None, closed: frozenset[int]) -> None:
        self.tensors = tensors
        self.closed = closed
        self.versions = [] if tensors is None else versions_of(_present(tensors))


def saved_tensors(
    ctx: Any, arrived: tuple[bool, ...], closed_by: tuple[tuple[int, ...], ...], keeps_graph: Callable[[], bool]
) -> Saved:
    """The saved tensors of a call, for the backward of those results whose tangents arrived.

    ctx.held is None, or a `Held` from then on. Raises RuntimeError, as autograd does, where they have been freed for
    this backward, or were written since.
    """
    held: Held | None = ctx.held
    running = frozenset(number for number, is_there in enumerate(arrived) if is_there)
    if held is None or held.tensors is None or not held.closed.isdisjoint(running):
        saved: Saved = ctx.saved_tensors
    else:
        saved = held.tensors
        if versions_of(_present(saved)) != held.versions:
            raise RuntimeError(_OVERWRITTEN)
    if not keeps_graph():
        closed = (frozenset() if held is None else held.closed).union(*(closed_by[number] for number in running))
        is_open = len(closed) < len(closed_by)
        # A result that is saved would hold the node that holds it.
        apart = [one.detach() if one is not None and one.grad_fn is ctx else one for one in saved if is_open]
        ctx.held = Held(tuple(apart) if is_open else None, closed)
    return saved


def _present(tensors: Saved) -> tuple[torch.Tensor, ...]:
    return tuple([tensor for tensor in tensors if tensor is not None])
