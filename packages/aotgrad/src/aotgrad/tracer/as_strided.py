"""`as_strided` addresses the memory, not the view that it is called on: where content and gradients then come from.

content    as_strided of the base, whatever views lie between
gradient   through these views: an element that one of them does not show gets none
           after a write of the memory: as_strided of the base
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

from absint import Meta
from absint.errors import TypeRuleError
from aotgrad.errors import NoInverse
from aotgrad.tracer.values import Step, Traced

if TYPE_CHECKING:
    from aotgrad.tracer.mode import TraceMode


aten = torch.ops.aten
_REINTERPRETING = frozenset((
    aten._conj.default, aten._neg_view.default, aten.view.dtype, aten.view_as_real.default,
    aten.view_as_complex.default,
))  # fmt: skip
"""Views of the same bytes as another dtype, or with another meaning."""


def path_of_strided(mode: TraceMode, source: Traced, step: Step) -> tuple[Step, ...]:
    """The path to what the `as_strided` of `source` shows: from the base, read in the dtype of `source`.

    Without an offset, on a tensor that is the whole memory, it starts wherever that tensor does. Otherwise it
    counts from the start of the storage, and an input must then stand where it stood at capture.
    """
    memory = source.memory
    views = [known for known in source.path if known.func is not None]
    whole = [known for known in views if known.func in _REINTERPRETING]
    if len(whole) == len(views) and len(step.args) == 2:
        return (*source.path, step)
    if {aten._conj.default, aten.view_as_real.default} <= {known.func for known in whole}:
        raise NoInverse("as_strided of the real or imaginary part of a conjugate")  # eager negates both parts
    if memory.input is not None:
        mode.fixed_inputs.add(memory.input)
    path: list[Step] = []
    meta = memory.meta
    for known in whole:
        try:
            after: Meta = mode.result_types(mode.record(known.func), (meta, *known.args), known.kwargs)
        except TypeRuleError as error:
            raise NoInverse(f"as_strided of a view of {meta} by {known.target}") from error
        path.append(replace(known, before=meta, after=after))
        meta = after
    args = (*step.args[:2], step.after.storage_offset)
    return (*path, replace(step, args=args, before=meta))


def rebase_stale_views(mode: TraceMode, values: dict[str, Any]) -> None:
    """Make the views behind an `as_strided` of a view again, from the base, if their memory was written since.

    Autograd does so by itself for real tensors. Of tensors with a dispatch of their own it repeats all views instead,
    through which other gradients come back.
    """
    known, mode.detours = mode.detours, []
    kept = []
    for tensor, version in known:
        made = None if tensor._version == version else _view_of_base(tensor)
        if made is None:
            kept.append((tensor, version))
            continue
        for name, value in values.items():
            if value is tensor:
                values[name] = made
    mode.detours = kept  # (To look at the history of a view has repeated some.)


def _view_of_base(tensor: Traced) -> Traced | None:
    """None where no gradient comes back, and where eager refuses to tell the history."""
    base: Any = tensor._base
    if base is None or not tensor.requires_grad:
        return None
    steps = tensor.steps[len(base.steps) :]
    count = next((at for at, step in enumerate(steps) if step.func in _REINTERPRETING), len(steps))
    if count == 0:
        return None  # from such a view on real tensors, too, have all views repeated
    try:
        if tensor.grad_fn is None:
            return None
    except RuntimeError:  # a view that several are made with, or one that was made without gradient
        return None
    meta = steps[count - 1].after
    with torch.enable_grad():
        made = base.as_strided(meta.shape, meta.stride, meta.storage_offset)
        for step in steps[count:]:
            made = made if step.func is None else step.func(made, *step.args, **step.kwargs)
    return made
