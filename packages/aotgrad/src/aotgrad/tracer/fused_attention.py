"""Attention by the fused kernels of a CUDA device, chosen as eager torch chooses on the same machine.

    kernel     forward -> results                                  also takes
    flash      out, logsumexp, -, -, -, -, seed, offset, -          grouped heads; no mask
    efficient  out, logsumexp, seed, offset                         a mask, added to the scores, and its gradient
    cudnn      out, logsumexp, -, -, -, -, seed, offset, -          a mask
    flex       out, logsumexp, -                                    a mask; no dropout

Results "-" are not kept, nor are seed and offset without dropout; those of the memory-efficient kernel are on the CPU.
"flex" is none of torch's, but the kernel that the target has for FlexAttention: for few keys, and beside a mask, it is
the quickest (`LIMITS`). Where eager has no kernel because rows are not dense in memory, their copies go to one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

from absint import Meta
from absint.forms.attention import allowed_kernels
from absint.meta import CPU, contiguous
from absint.rules.layers import by_head
from absint.schema import OpRecord
from absint.symbolic import hint_of
from aotgrad.torch_capabilities import TORCH
from aotgrad.tracer.flex_attention import adding, can_be_added, dense
from stagewire.flex_attention import BACKWARD, FORWARD, NO_BLOCKS
from stagewire.graph import Ref

if TYPE_CHECKING:
    from aotgrad.tracer.mode import TraceMode
    from aotgrad.tracer.recorder import Recorder


aten = torch.ops.aten
ALIGNMENT = 16
"""Elements: where rows of a mask may begin for the memory-efficient kernel, whatever its dtype."""
ONE_QUERY = 32768
"""Scores of one query a head, as many as are written out (`benchmarks/decode.py`, on an H200)."""
ONE_SHARED_QUERY = 1 << 18
"""The same where heads share keys (`benchmarks/decode.py --batch 8`, on an H100)."""
MATH = "math"
"""Products and a softmax: the written-out form."""
_KERNELS = {0: MATH, 1: "flash", 2: "efficient", 3: "cudnn"}
"""By `at::SDPBackend`."""


class Operands(NamedTuple):
    """Query, key and value (batch, heads, length, width), the mask to be added to the scores, and the numbers."""

    query: Ref
    key: Ref
    value: Ref
    mask: Ref | None
    is_causal: bool
    scale: float
    dropout: float


class Fused(NamedTuple):
    """A forward in the trace: its kernel, what it was given, and the results that the backward takes beside the output.

    rest: (seed, offset) of the random stream; none where the backward asks for none.
    """

    kernel: str
    logsumexp: Ref
    rest: tuple[Ref, ...]
    given: Operands


class Limit(NamedTuple):
    """The most keys for which the kernel of FlexAttention is taken, for heads of at most `width` elements."""

    width: int
    plain: int
    masked: int


LIMITS = (Limit(64, plain=192, masked=1024), Limit(128, plain=128, masked=256))
"""In half precision (`benchmarks/short_attention.py`, on an H200)."""


class Kernels(NamedTuple):
    """eager: the kernel that eager takes, or `MATH`; None if nobody can say. taken: the one to take; None for none."""

    eager: str | None
    taken: str | None


def choose(flex_attention: Sequence[str], metas: list[Meta], *rest: Any) -> str | None:
    """The kernel to take for such tensors, see `kernels`. flex_attention: `AotGrad.Options.flex_attention`."""
    return kernels(metas, *rest, has_flex=metas[0].device.type in flex_attention).taken


def kernels(
    metas: list[Meta], mask: Meta | None, is_causal: bool, scale: float | None, dropout: float,
    mask_grad: bool = False, shares_keys: bool = False, has_flex: bool = False,
) -> Kernels:  # fmt: skip
    """The kernels for such tensors; none where the device is not there.

    mask_grad: whether a gradient of the mask is wanted, which one kernel gives. shares_keys: whether keys and values
    are those of fewer heads, repeated. has_flex: whether the target has a kernel for FlexAttention, and all that is
    wanted of it. Where sizes are symbolic, those at capture speak for all, and another kernel is taken for cuDNN's,
    which is made for some sizes only.
    """
    rest = (mask, is_causal, scale, dropout, mask_grad)
    eager = taken = _eagers(metas, *rest)
    if eager == MATH and not all(map(has_dense_rows, metas)):
        taken = _eagers([contiguous(meta.shape, meta.dtype, meta.device) for meta in metas], *rest)
    if taken in (None, MATH) or not is_taken(taken, metas, dropout, mask_grad, shares_keys):
        return Kernels(eager, None)
    is_open = has_flex and not (is_causal or dropout or mask_grad) and _LEFT_TO_TORCH.issubset(allowed_kernels())
    return Kernels(eager, "flex" if is_open and is_flex_taken(metas, mask) else taken)


_LEFT_TO_TORCH = frozenset(("flash", "mem_efficient", "math"))
"""Where not all of these are allowed, the program names the kernel that it wants."""


def has_dense_rows(meta: Meta) -> bool:
    """Whether elements of a row lie next to each other, as all of torch's kernels ask."""
    return hint_of(meta.stride[-1]) == 1


def is_flex_taken(metas: list[Meta], mask: Meta | None) -> bool:
    """Whether the kernel of FlexAttention is the quickest for query, key and value, all of which it takes."""
    query, key, value = metas
    widths = [*query.shape[-1:], *value.shape[-1:]]
    fixed = (*widths, *(meta.shape[1] for meta in metas), *(meta.stride[-1] for meta in metas))
    if query.dtype not in (torch.float16, torch.bfloat16) or not all(type(size) is int for size in fixed):
        return False
    if query.shape[1] % key.shape[1] or (mask is not None and not can_be_added(mask, (*query.shape[:3], key.shape[2]))):
        return False
    limit = next((one for one in LIMITS if max(widths) <= one.width), None)
    return limit is not None and hint_of(key.shape[2]) <= (limit.plain if mask is None else limit.masked)


def repeats(recorder: Recorder, value: Ref) -> bool:
    """Whether a tensor is a copy that has elements of another several times."""
    node = recorder.maker(value.name)
    while node is not None and node.target in _COPIES and isinstance(node.args[0], Ref):
        node = recorder.maker(node.args[0].name)
    return node is not None and node.target == "aten.expand.default"


_COPIES = frozenset(("aten.clone.default", "aten.view.default", "aten._unsafe_view.default"))


def is_taken(kernel: str, metas: list[Meta], dropout: float, mask_grad: bool, shares_keys: bool) -> bool:
    """Whether eager's kernel is to be taken for query, key and value; else attention is written out."""
    query, key, value = metas
    sizes = (*query.shape[:3], key.shape[2])
    if all(type(size) is int for size in sizes) and query.shape[2] == 1 and not dropout:
        is_shared = shares_keys or query.shape[1] != key.shape[1]
        if math.prod(sizes) <= (ONE_SHARED_QUERY if is_shared else ONE_QUERY):
            return False  # few keys, which sums of products read as fast, without repeating heads
    if kernel == "efficient":
        return query.shape[1] == key.shape[1]  # eager repeats the heads
    if mask_grad or query.shape[-1] != value.shape[-1]:
        return False
    return kernel != "flash" or not query.shape[-1] % 8  # eager pads the width for it


def _eagers(
    metas: list[Meta], mask: Meta | None, is_causal: bool, scale: float | None, dropout: float, mask_grad: bool
) -> str | None:
    query, key, _ = metas
    if query.device.type != "cuda" or (query.device.index or 0) >= torch.cuda.device_count():
        return None
    if 0 in query.shape or 0 in key.shape or (mask is not None and mask.dtype != query.dtype):
        return None
    grouped = query.shape[1] != key.shape[1]
    is_symbolic = any(isinstance(size, torch.SymInt) for meta in metas for size in meta.shape)
    with TORCH.no_modes():
        stand_ins = [_real(meta).requires_grad_() for meta in metas]
        added = None if mask is None else _real(mask).requires_grad_(mask_grad)
        number = TORCH.choose_attention(*stand_ins, added, dropout, is_causal, scale=scale, enable_gqa=grouped)
        kernel = _KERNELS.get(int(number))
        if kernel == "cudnn" and is_symbolic:
            given = SDPAParams(*stand_ins, added, dropout, is_causal, grouped)
            others = {"flash": can_use_flash_attention, "efficient": can_use_efficient_attention}
            kernel = next((name for name, can_use in others.items() if can_use(given)), None)
    return kernel


def _real(meta: Meta) -> torch.Tensor:
    shape, stride = ([hint_of(size) for size in sizes] for sizes in (meta.shape, meta.stride))
    return torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)


def fused_forward(mode: TraceMode, kernel: str, given: Operands) -> tuple[Ref, Fused]:
    """Record the forward; the output, and what its backward needs."""
    metas = mode.recorder.metas
    if kernel != "flex":
        given = _with_dense_rows(mode, given)
    query, value = metas[given.query.name], metas[given.value.name]
    batch, heads, length, _ = query.shape
    rows = contiguous((batch, heads, length), torch.float32, query.device)
    shape = (batch, heads, length, value.shape[-1])
    rest: tuple[Any, ...]
    types: tuple[Meta | None, ...]
    kept = slice(6, 8)
    if kernel == "flex":
        types = (dense(query, shape), rows, rows)
        found = mode.recorder.record(FORWARD, _flex_call(mode, given, ""), {}, types)
        return found[0], Fused(kernel, found[1], (), given)
    if kernel == "efficient":
        padded = contiguous((batch, heads, -(-length // 32) * 32), torch.float32, query.device)
        rest = (_whole_mask(mode, given, shape), True, given.dropout, given.is_causal)
        place = contiguous((), torch.int64, CPU) if given.dropout else None
        types, kept = (by_head(query, shape), padded, place, place), slice(2, 4 if given.dropout else 2)
    elif kernel == "flash":
        seed, offset = contiguous((2,), torch.uint64, query.device), contiguous((), torch.uint64, query.device)
        types = (_as_laid_out(shape, query), rows, None, None, None, None, seed, offset, None)
        rest = (given.dropout, given.is_causal, False)
    else:
        seed = contiguous((), torch.int64, query.device)
        last = contiguous((batch, heads, length, 1), torch.float32, query.device)
        types = (_as_laid_out(shape, query), last, None, None, None, None, seed, seed, None)
        rest = (given.mask, True, given.dropout, given.is_causal, False)
    args = (given.query, given.key, given.value, *rest)
    target = f"aten._scaled_dot_product_{kernel}_attention.default"
    found = mode.recorder.record(target, args, {"scale": given.scale}, types)
    return found[0], Fused(kernel, found[1], found[kept], given)


def _flex_call(mode: TraceMode, given: Operands, *others: str) -> tuple[Any, ...]:
    """The arguments that both ops of FlexAttention take. others: the functions beside that of the scores."""
    query, key, value, mask, _, scale, _ = given
    metas = mode.recorder.metas
    sizes = (*metas[query.name].shape[:3], metas[key.name].shape[2])
    functions = ["" if mask is None else adding(metas[mask.name], sizes), *others]
    return (query, key, value, [], [] if mask is None else [mask], functions, scale, [NO_BLOCKS, NO_BLOCKS], [])


def _with_dense_rows(mode: TraceMode, given: Operands) -> Operands:
    """The operands, copied where they are not laid out so."""
    dense_ones = [
        ref if has_dense_rows(mode.recorder.metas[ref.name]) else mode.emit(aten.clone.default, (ref,), _ROW_MAJOR)
        for ref in given[:3]
    ]
    return Operands(*dense_ones, *given[3:])


_ROW_MAJOR = {"memory_format": torch.contiguous_format}


def laid_out_as_eagers(mode: TraceMode, out: Ref, eager: str | None, query: Meta) -> Ref:
    """The output of an attention of this query in memory of the order in which eager's kernel has it."""
    meta = mode.recorder.metas[out.name]
    if eager == MATH:
        wanted = contiguous(meta.shape, meta.dtype, meta.device)
    else:
        wanted = by_head(query, meta.shape) if eager == "efficient" else _as_laid_out(meta.shape, query)
    sizes, steps, found = ([hint_of(n) for n in given] for given in (meta.shape, wanted.stride, meta.stride))
    if all(size == 1 or a == b for size, a, b in zip(sizes, steps, found, strict=True)):
        return out
    order = sorted(range(4), key=lambda dim: (-steps[dim], dim))
    permuted = mode.emit(aten.permute.default, (out, order), {})
    copy = mode.emit(aten.clone.default, (permuted,), _ROW_MAJOR)
    return mode.emit(aten.permute.default, (copy, [order.index(dim) for dim in range(4)]), {})  # type: ignore[no-any-return]


def fused_backward(
    mode: TraceMode, fused: Fused, grad: Ref, out: Ref, *, mask_grad: bool = False
) -> tuple[Ref, Ref, Ref, Ref | None]:
    """Record the backward; the gradients of query, key and value, and of the mask if it is wanted."""
    given = fused.given
    metas = [mode.recorder.metas[ref.name] for ref in (given.query, given.key, given.value)]
    lengths = (metas[0].shape[2], metas[1].shape[2])
    types: tuple[Meta | None, ...] = tuple(by_head(meta, meta.shape) for meta in metas)
    rest: tuple[Any, ...]
    if fused.kernel == "flex":
        types = tuple(dense(meta, meta.shape) for meta in metas)
        wide = [mode.emit(aten._to_copy.default, (ref,), {"dtype": torch.float32}) for ref in (grad, out)]
        delta = mode.emit(aten.sum.dim_IntList, (mode.emit(aten.mul.Tensor, (*wide,), {}), [-1]), {})
        call = _flex_call(mode, given, "", "")  # what is added leaves the gradient of a score as it is
        args = (*call, grad, fused.logsumexp, delta)
        return (*mode.recorder.record(BACKWARD, args, {}, types), None)
    if fused.kernel == "efficient":
        mask = _whole_mask(mode, given, (*metas[0].shape[:3], metas[2].shape[-1]))
        wanted = [True, True, True, mask_grad]
        places = fused.rest or (None, None)
        rest = (mask, out, fused.logsumexp, *places, given.dropout, wanted, given.is_causal)
        types = (*types, _by_rows(mode.recorder.metas[mask.name]) if mask_grad and mask is not None else None)
    elif fused.kernel == "flash":
        rest = (out, fused.logsumexp, None, None, *lengths, given.dropout, given.is_causal, *fused.rest)
    else:
        numbers = (*lengths, given.dropout, given.is_causal)
        rest = (out, fused.logsumexp, *fused.rest, given.mask, None, None, *numbers)
        types = tuple(_as_laid_out(meta.shape, meta) for meta in metas)
    target = f"aten._scaled_dot_product_{fused.kernel}_attention_backward.default"
    args = (grad, given.query, given.key, given.value, *rest)
    found = mode.recorder.record(target, args, {"scale": given.scale}, types)
    return found[0], found[1], found[2], found[3] if len(found) > 3 else None


def _by_rows(mask: Meta) -> Meta:
    """The gradient of a mask: rows begin at aligned places."""
    _, heads, length, keys = mask.shape
    row = keys + -keys % ALIGNMENT
    return Meta(mask.shape, (heads * length * row, length * row, row, 1), mask.dtype, mask.device)


def _as_laid_out(shape: tuple[int, ...], like: Meta) -> Meta:
    """In memory of the same order as `like`, if it has its shape."""
    return dense(like, shape) if shape == like.shape else by_head(like, shape)


def _whole_mask(mode: TraceMode, given: Operands, shape: tuple[int, ...]) -> Ref | None:
    """The mask for every head, as the memory-efficient kernel takes it."""
    if given.mask is None:
        return None
    mask, meta = given.mask, mode.recorder.metas[given.mask.name]
    keys = meta.shape[-1]
    if meta.stride[-1] != 1 or any(step % ALIGNMENT for step in meta.stride[:-1]):
        padded = mode.emit(aten.constant_pad_nd.default, (mask, [0, -keys % ALIGNMENT], 0.0), {})
        mask = mode.emit(aten.slice.Tensor, (padded, -1, 0, keys), {})
    return mode.emit(aten.expand.default, (mask, [*shape[:3], keys]), {})


def efficient(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_scaled_dot_product_efficient_attention(query, key, value, mask, ...), whose gradient has one for the mask."""
    given = operands(mode, by_name(record, args, kwargs))
    out, fused = fused_forward(mode, "efficient", given)
    mode.attentions[fused.logsumexp.name] = fused
    places = fused.rest or (mode.emit(aten.full.default, ([], 0), {"dtype": torch.int64}),) * 2
    return mode.tensors((out, fused.logsumexp, *places))


def efficient_backward(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its backward: the gradients of query, key, value and mask, or None for the last."""
    named = by_name(record, args, kwargs)
    grad, out, rows = (mode.content(named[key]) for key in ("grad_out_", "out", "logsumexp"))
    wants = bool(named["grad_input_mask"][3])
    given = operands(mode, named)
    places = tuple(mode.content(named[key]) for key in ("philox_seed", "philox_offset")) if given.dropout else ()
    return mode.tensors(fused_backward(mode, Fused("efficient", rows, places, given), grad, out, mask_grad=wants))


def by_name(record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of its schema."""
    names = [argument.name for argument in record.func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def operands(mode: TraceMode, named: dict[str, Any]) -> Operands:
    """What an attention is given, forward or backward."""
    mask, scale = named.get("attn_bias", named.get("attn_mask")), named.get("scale")
    return Operands(
        *(mode.content(named[key]) for key in ("query", "key", "value")),
        None if mask is None else mode.content(mask),
        bool(named.get("is_causal")),
        1 / math.sqrt(named["query"].meta.shape[-1]) if scale is None else scale,
        float(named.get("dropout_p") or 0),
    )
