"""Views and their inverses: how a write through a view reaches its base.

Reading: apply the steps to the base's value. Writing: apply the inverse of the last step to the new content, then
of the one before, until a new value of the base stands.

`as_strided` addresses the memory, not the view that it is called on: where content and gradients then come from.

content    as_strided of the base, whatever views lie between
gradient   through these views: an element that one of them does not show gets none
           after a write of the memory: as_strided of the base
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from msgspec.structs import replace

from absint import Meta
from absint.errors import TypeRuleError
from absint.strides import is_contiguous, view_stride
from aotgrad.errors import NoInverse
from aotgrad.tracer.values import Step, Traced
from stagewire.graph import Ref
from stagewire.types import numel

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from aotgrad.tracer.mode import TraceMode


aten = torch.ops.aten
Emit = Callable[..., Any]  # (func, args, kwargs) -> refs
Call: TypeAlias = "tuple[OpOverload, tuple[Any, ...]]"


def _split(meta: Meta, size: int, dim: int = 0) -> list[Call]:
    extent = meta.shape[dim]
    count = int(max((extent + size - 1) // size, 1)) if size else 1
    return _slices(dim, [size] * (count - 1) + [extent - (count - 1) * size])


def _slices(dim: int, sizes: list[int]) -> list[Call]:
    calls: list[Call] = []
    start = 0
    for size in sizes:
        calls.append((aten.slice.Tensor, (dim, start, start + size)))
        start += size
    return calls


# Views with several results, as one single-result view for each.
SPLITTERS: dict[str, Callable[..., list[Call]]] = {
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": lambda meta, sizes, dim=0: _slices(dim, sizes),
    "aten.unbind.int": lambda meta, dim=0: [(aten.select.int, (dim, index)) for index in range(meta.shape[dim])],
}


def normalize_view(func: OpOverload, args: tuple[Any, ...], after: Meta) -> Call:
    """The view op to record: `_reshape_alias` and `_unsafe_view` are what `view` is."""
    if func is aten._reshape_alias.default or func is aten._unsafe_view.default:
        return aten.view.default, (list(after.shape),)
    return func, args


def reshape_value(emit: Emit, metas: dict[str, Meta], value: Ref, shape: tuple[int, ...]) -> Ref:
    """`value` in another shape; copied first where its strides allow no view."""
    meta = metas[value.name]
    if meta.shape == shape:
        return value
    if view_stride(meta.shape, meta.stride, shape) is None:
        value = emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    return emit(aten.view.default, (value, list(shape)), {})


def invert(emit: Emit, metas: dict[str, Meta], step: Step, base: Ref, content: Ref) -> Ref:
    """The value of a step's source once its view holds `content`; `base` is the source's value before."""
    if step.func is None:
        return content
    inverse = _INVERSES.get(step.func)
    if inverse is None:
        raise NoInverse(f"a write through {step.func} of {step.before}")
    return inverse(emit, metas, step, base, content)


def _unexpand(emit: Emit, metas: dict[str, Meta], step: Step, base: Ref, content: Ref) -> Ref:
    if numel(step.before.shape) != numel(step.after.shape):
        raise NoInverse(f"a write into {step.after}, where several elements are one memory location")
    return reshape_value(emit, metas, content, step.before.shape)


def _unpermute(emit: Emit, metas: dict[str, Meta], step: Step, base: Ref, content: Ref) -> Ref:
    dims = [d % max(step.before.ndim, 1) for d in step.args[0]]
    return emit(aten.permute.default, (content, [dims.index(dim) for dim in range(len(dims))]), {})


def _scatter(func: OpOverload) -> Any:
    return lambda emit, metas, step, base, content: emit(func, (base, content, *step.args), step.kwargs)


def _as_strided_back(emit: Emit, metas: dict[str, Meta], step: Step, base: Ref, content: Ref) -> Ref:
    if step.before.storage_offset and len(step.args) > 2:
        raise NoInverse(f"a write through as_strided of an input at storage offset {step.before.storage_offset}")
    if not is_contiguous(step.before.shape, step.before.stride):
        raise NoInverse(f"a write through as_strided of {step.before}")  # as_strided_scatter takes no other
    return emit(aten.as_strided_scatter.default, (base, content, *step.args), {})


def _by_index(emit: Emit, metas: dict[str, Meta], step: Step, base: Ref, content: Ref) -> Ref:
    """Any view that shows no element twice: the same view of the elements' numbers says where each one belongs."""
    meta = step.before
    numbers = emit(aten.arange.default, (numel(meta.shape),), {"dtype": torch.int64, "device": meta.device})
    numbers = emit(step.func, (emit(aten.view.default, (numbers, list(meta.shape)), {}), *step.args), step.kwargs)
    places = reshape_value(emit, metas, numbers, (numel(step.after.shape),))
    row = reshape_value(emit, metas, content, (numel(step.after.shape),))
    new = emit(aten.scatter.src, (reshape_value(emit, metas, base, (numel(meta.shape),)), 0, places, row), {})
    return emit(aten.view.default, (new, list(meta.shape)), {})


def _view_dtype_back(emit: Emit, metas: dict[str, Meta], step: Step, base: Ref, content: Ref) -> Ref:
    if not is_contiguous(metas[content.name].shape, metas[content.name].stride):
        content = emit(aten.clone.default, (content,), {"memory_format": torch.contiguous_format})
    return emit(aten.view.dtype, (content, step.before.dtype), {})


_OLD_SHAPE = (
    aten.view.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default,
)  # fmt: skip
_OWN_INVERSE = aten.t.default, aten.transpose.int, aten._conj.default, aten._neg_view.default
_INVERSES: dict[OpOverload, Any] = {
    **dict.fromkeys(
        _OLD_SHAPE, lambda emit, metas, step, base, new: reshape_value(emit, metas, new, step.before.shape)
    ),
    **dict.fromkeys(_OWN_INVERSE, lambda emit, metas, step, base, new: emit(step.func, (new, *step.args), step.kwargs)),
    aten.expand.default: _unexpand,
    aten.permute.default: _unpermute,
    aten.select.int: _scatter(aten.select_scatter.default),
    aten.slice.Tensor: _scatter(aten.slice_scatter.default),
    aten.diagonal.default: _scatter(aten.diagonal_scatter.default),
    aten.as_strided.default: _as_strided_back,
    aten.unfold.default: _by_index,
    aten.view.dtype: _view_dtype_back,
    aten.view_as_real.default: lambda emit, metas, step, base, new: emit(aten.view_as_complex.default, (new,), {}),
    aten.view_as_complex.default: lambda emit, metas, step, base, new: emit(aten.view_as_real.default, (new,), {}),
}


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
