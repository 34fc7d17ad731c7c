"""torch functions whose meaning in captured code is simpler than their text, or known for the arguments at hand."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor

from absint.meta import contiguous
from bytecap.context_types import Tracer
from bytecap.errors import DataDependent, UnsupportedCall
from bytecap.nodes.bodies import states_of_effects
from bytecap.nodes.torch_calls import call_torch, to_host
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, Value, evaluated, inlined
from bytecap.objects.containers.sequences import ListValue, Sequence, TupleValue
from bytecap.semantics.operations import binary
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Checkpoint

_NO_CONTEXT = torch.utils.checkpoint.noop_context_fn


_NO_CHOICE = next(
    (
        text
        for function in map(inspect.unwrap, filter(inspect.isfunction, vars(torch.utils.checkpoint).values()))
        for text in function.__code__.co_consts
        if str(text).startswith("torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly.")
    ),
    None,
)
"""What torch warns of where use_reentrant is left out: the words change with the release, None where none are found."""
_SETTINGS = frozenset(
    name
    for name, one in inspect.signature(torch.utils.checkpoint.checkpoint).parameters.items()
    if one.kind is one.KEYWORD_ONLY
)


def _checkpoint(
    tracer: Tracer, function: Value = NONE, *args: Value, use_reentrant: Value = NONE, context_fn: Value | None = None,
    **kwargs: Value,
) -> Value:  # fmt: skip
    """torch.utils.checkpoint.checkpoint is a call, whose nodes are noted: the partitioner keeps none of their results.

    Which ops a selective checkpoint saves changes no result; there the partitioner chooses as everywhere.
    """
    for name in ("preserve_rng_state", "determinism_check", "debug", "early_stop"):
        kwargs.pop(name, None)
    if function.is_none() or not _SETTINGS.isdisjoint(kwargs):
        raise UnsupportedCall("torch.utils.checkpoint.checkpoint as a decorator, or with a setting of new releases")
    is_selective = context_fn is not None and getattr(context_fn, "real", None) is not _NO_CONTEXT
    if is_selective and not _chooses_ops(tracer, context_fn):  # type: ignore[arg-type]
        raise UnsupportedCall("torch.utils.checkpoint.checkpoint with a context_fn of its own")
    builder, first = tracer.graph, len(tracer.graph.nodes)
    result = _run_checkpoint(tracer, function, list(args), kwargs, use_reentrant)
    if not is_selective:
        builder.checkpoints.append(Checkpoint(first, len(builder.nodes)))
    return result


def _call_twice(tracer: Tracer, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call that the backward repeats: it may change nothing (running statistics, counters) but what it makes."""
    known = {id(storage): storage.version for storage in _memory(tracer)}
    effects = states_of_effects(tracer)
    result = function.call(tracer, args, kwargs)
    is_same = states_of_effects(tracer) == effects and all(
        storage.version == known.get(id(storage), 0) for storage in _memory(tracer, known)
    )
    if torch.is_grad_enabled() and not is_same:
        raise UnsupportedCall("torch.utils.checkpoint.checkpoint of code that changes something outside of it")
    return result


def _memory(tracer: Tracer, known: Iterable[int] = ()) -> list[Any]:
    """The memory of tensors from outside, and of those that stand on known memory."""
    found = [(tensor.real, tensor.abstract.storage_record) for tensor in tracer.inputs.tensors.values()]
    return [storage for real, storage in found if not known or real is not None or id(storage) in known]


class _SelectiveContext:
    """Stands for a context of a selective checkpoint, which the plain code alone could enter."""


def _chooses_ops(tracer: Tracer, context_fn: Value) -> bool:
    """Whether the contexts are those of `create_selective_checkpoint_contexts`."""
    made = context_fn.call(tracer, [], {})
    contexts = made.values(tracer) if isinstance(made, TupleValue) else []
    return bool(contexts) and all(getattr(each, "real", None) is _SelectiveContext for each in contexts)


def _run_checkpoint(
    tracer: Tracer, function: Value, args: list[Value], kwargs: dict[str, Value], use_reentrant: Value
) -> Value:
    if use_reentrant.is_none():
        if _NO_CHOICE is None:
            raise UnsupportedCall("torch.utils.checkpoint.checkpoint without use_reentrant")
        _warn(tracer, _NO_CHOICE)
    if not use_reentrant.is_none() and not use_reentrant.truth(tracer):
        return _call_twice(tracer, function, args, kwargs)
    if kwargs:
        raise tracer.raises(ValueError, "Unexpected keyword arguments: " + ",".join(kwargs))
    if any(isinstance(arg, TensorValue) and arg.abstract.requires_grad for arg in args):
        return _call_twice(tracer, function, args, {})
    _warn(tracer, "None of the inputs have requires_grad=True. Gradients will be None")
    return _without_gradients(tracer, function, args)


def _warn(tracer: Tracer, text: str) -> None:
    tracer.objects.wrap(warnings.warn, None).call(tracer, [Constant(text)], {})


def _without_gradients(tracer: Tracer, function: Value, args: list[Value]) -> Value:
    """`function(*args)` as the reentrant checkpoint runs it where no argument requires grad."""
    enabled = torch.is_grad_enabled()
    switch = tracer.objects.wrap(TORCH.set_grad_enabled, None)
    switch.call(tracer, [Constant(False)], {})
    try:
        return function.call(tracer, args, {})
    finally:
        switch.call(tracer, [Constant(enabled)], {})


def _tensor_from(function: Callable[..., Any]) -> Callable[..., Value]:
    """torch.tensor, torch.as_tensor: of nested lists with tensors in them, a stack of those."""

    def make(tracer: Tracer, data: Value, *args: Value, **kwargs: Value) -> Value:
        leaves = list(leaves_of(tracer, data)) if isinstance(data, Sequence) else []
        if not any(isinstance(leaf, TensorValue) for leaf in leaves):
            return call_torch(tracer, function, [data, *args], kwargs)
        if args or not all(_is_plain_number(leaf, kwargs.get("dtype", NONE)) for leaf in leaves):
            raise DataDependent(f"torch.{function.__name__}() of a list of tensors")
        return _stack(tracer, data, leaves, kwargs)

    return make


def _is_plain_number(leaf: Value, dtype: Value) -> bool:
    """Whether torch takes a leaf of a nested list without a warning or an error."""
    if not isinstance(leaf, TensorValue):
        return True
    tensor = leaf.abstract
    fits = dtype.is_none() or torch.can_cast(tensor.dtype, dtype.concrete())
    return not tensor.dim() and not tensor.requires_grad and fits


def leaves_of(tracer: Tracer, value: Value) -> Any:
    """What nested lists and tuples hold in the end."""
    if not isinstance(value, (ListValue, TupleValue)):
        yield value
        return
    for item in value.values(tracer):
        yield from leaves_of(tracer, item)


def _stack(tracer: Tracer, data: Value, leaves: list[Value], kwargs: dict[str, Value]) -> Value:
    wanted = kwargs.get("dtype", NONE)
    dtype = Constant(_common_dtype(leaves)) if wanted.is_none() else wanted

    def build(value: Value) -> Value:
        if isinstance(value, TensorValue):
            detached = value.call_method(tracer, "detach", [], {})
            return detached.call_method(tracer, "to", [], {"device": Constant(torch.device("cpu")), "dtype": dtype})
        if isinstance(value, (ListValue, TupleValue)):
            return call_torch(tracer, torch.stack, [ListValue([build(item) for item in value.values(tracer)])], {})
        return call_torch(tracer, torch.tensor, [value], {"dtype": dtype})

    made = build(data)
    if not kwargs.get("device", NONE).is_none():
        made = made.call_method(tracer, "to", [kwargs["device"]], {})
    if "requires_grad" in kwargs and kwargs["requires_grad"].truth(tracer):
        made = made.call_method(tracer, "requires_grad_", [], {})
    return made


def _common_dtype(leaves: list[Value]) -> torch.dtype:
    """What torch.tensor makes of these numbers and 0-dim tensors."""
    tensors = (leaf.abstract if isinstance(leaf, TensorValue) else torch.tensor(leaf.concrete()) for leaf in leaves)
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


TORCH_FUNCTIONS: dict[Any, Callable[..., Value]] = {
    torch.utils.checkpoint.checkpoint: _checkpoint,
    torch.utils.checkpoint.create_selective_checkpoint_contexts: lambda tracer, *args, **kwargs: TupleValue(
        [tracer.objects.wrap(_SelectiveContext, None)] * 2
    ),
    torch.tensor: _tensor_from(torch.tensor),
    torch.as_tensor: _tensor_from(torch.as_tensor),
}


# -- Functions of torch that are evaluated as Python where their arguments fit: combinations, resize_, a loss.
#
# What torch refuses, and what it warns of, is left to torch: the call is then a node like others.

_MOST_CHOICES = 1 << 16
_TWO, _FALSE = Constant(2), Constant(False)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """torch.combinations: which elements go together follows from how many there are, a constant of the graph."""
    if r == 0:
        return input.new_empty(0)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input.shape[0]), r))
    places = torch.tensor(rows, dtype=torch.int64, device=input.device).reshape(len(rows), r)
    return input[places]


def _combinations(tracer: Tracer, input: Value, r: Value = _TWO, with_replacement: Value = _FALSE) -> Value:
    x, r_ = getattr(input, "abstract", None), r.concrete()
    if x is None or x.dim() != 1 or type(r_) is not int or r_ < 0 or x.numel() ** max(r_, 1) > _MOST_CHOICES:
        return call_torch(tracer, torch.combinations, [input, r, with_replacement], {})
    return inlined(combinations)(tracer, input, r, with_replacement)


def _resize(tracer: Tracer, tensor: Value, *sizes: Value, memory_format: Value = NONE) -> Value:
    given = [to_host(tracer, size) for size in sizes]
    shape = tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else tuple(given)
    return _resized(tracer, torch.Tensor.resize_, [tensor, *sizes], shape, memory_format)


def _resize_as(tracer: Tracer, tensor: Value, other: Value, memory_format: Value = NONE) -> Value:
    shape = tuple(other.abstract.shape) if isinstance(other, TensorValue) else None
    return _resized(tracer, torch.Tensor.resize_as_, [tensor, other], shape, memory_format)


def _resized(
    tracer: Tracer, function: Callable[..., Any], args: list[Value], shape: Any, memory_format: Value
) -> Value:
    """`function(*args)`: another look at the same memory where that has enough elements."""
    named = {} if memory_format.is_none() else {"memory_format": memory_format}
    tensor = args[0]
    x = tensor.abstract if isinstance(tensor, TensorValue) else None
    if x is None or shape is None or named or x.requires_grad or not x.is_contiguous():
        return call_torch(tracer, function, args, named)
    if math.prod(shape) > x.numel() or any(size < 0 for size in shape):
        return call_torch(tracer, function, args, named)
    if tuple(x.shape) == shape:
        return tensor
    sizes = [tracer.objects.fresh(shape), tracer.objects.fresh(contiguous(shape, x.dtype, x.device).stride)]
    return tensor.call_method(tracer, "as_strided_", sizes, {})


CHECKED_FUNCTIONS: dict[Any, Callable[..., Value]] = {
    torch.combinations: _combinations,
    F.gaussian_nll_loss: evaluated(F.gaussian_nll_loss),  # whose checks of data are branches that raise
    torch.Tensor.resize_: _resize,
    torch.Tensor.resize_as_: _resize_as,
    torch.resize_as_: _resize_as,
}


# -- Functions whose results have as many elements as a small tensor says, one that comes from outside of the frame.
#
# What it holds while the frame is captured is assumed, and checked by the graph (`nodes.data_checks`): such tensors are
# mostly constants of the program. Where it fails the frame runs plain, and after some failures the graph ends in front
# of the call.


def tensor_split(input: Tensor, indices: Tensor, dim: int, known: Any) -> Any:
    """torch.tensor_split at `known`, which is what `indices` held when the program was captured."""
    if (indices != torch.tensor(known)).any():
        raise RuntimeError("the tensor is split elsewhere")
    return torch.tensor_split(input, known, dim)


def repeat_interleave(input: Tensor, repeats: Tensor, dim: Any, total: int) -> Tensor:
    """torch.repeat_interleave to `total` elements along `dim`, as many as there were when the program was captured."""
    if repeats.sum() != total:
        raise RuntimeError("there are more repetitions, or less")
    return torch.repeat_interleave(input, repeats, dim, output_size=total)


_NONE, _ZERO = Constant(None), Constant(0)
_MOST = 256


def _content(value: Value, dtypes: tuple[torch.dtype, ...]) -> Any:
    """The numbers in a small tensor from outside to which the frame has not written; None where it is none."""
    if not isinstance(value, TensorValue) or value.real is None or value.abstract.storage_record.version:
        return None
    real = value.real
    if real.dtype not in dtypes or real.device.type != "cpu" or real.numel() > _MOST:
        return None
    return real.tolist()


def _tensor_split(original: Callable[..., Any]) -> Callable[..., Value]:
    def handler(
        tracer: Tracer, tensor: Value, indices: Value | None = None, dim: Value = _ZERO, **named: Value
    ) -> Value:
        given = indices if indices is not None else named.get("tensor_indices_or_sections")
        known = None if given is None else _content(given, (torch.int64,))
        if given is None or known is None or not isinstance(tensor, TensorValue):
            return call_torch(tracer, original, [tensor, *([] if indices is None else [indices, dim])], named)
        places = tracer.objects.fresh(tuple(known) if isinstance(known, list) else known)
        return inlined(tensor_split)(tracer, tensor, given, named.get("dim", dim), places)

    return handler


def _repeat_interleave(original: Callable[..., Any]) -> Callable[..., Value]:
    def handler(tracer: Tracer, *args: Value, **named: Value) -> Value:
        bound = dict(zip(("input", "repeats", "dim"), args, strict=False)) | named
        known = _content(bound.get("repeats", _NONE), (torch.int64, torch.int32))
        is_open = bound.get("output_size", _NONE).is_none() and isinstance(bound.get("input"), TensorValue)
        if known is None or not is_open or min(_flat(known), default=0) < 0:
            return call_torch(tracer, original, list(args), named)
        dim = bound.get("dim", _NONE)
        total = tracer.objects.fresh(_total(bound["input"].abstract, _flat(known), to_host(tracer, dim)))
        return inlined(repeat_interleave)(tracer, bound["input"], bound["repeats"], dim, total)

    return handler


def _flat(known: Any) -> list[int]:
    return known if isinstance(known, list) else [known]


def _total(x: Any, repeats: list[int], dim: int | None) -> int:
    """How many elements repeat_interleave makes along its dimension: one number is for each of them."""
    if len(repeats) != 1:
        return sum(repeats)
    return repeats[0] * int(x.numel() if dim is None else x.shape[dim] if x.dim() else 1)


KNOWN_CONTENTS: dict[Any, Callable[..., Value]] = {
    **{original: _tensor_split(original) for original in (torch.tensor_split, torch.Tensor.tensor_split)},
    **{
        original: _repeat_interleave(original) for original in (torch.repeat_interleave, torch.Tensor.repeat_interleave)
    },
}


# -- What torch.optim calls: its numbers are 0-dim tensors in captured code, where plain code reads them.
#
# A step count travels as float64, so that what is computed from it rounds as Python's floats do.

ONE = Constant(1)
_WITH_FLOAT64 = frozenset({"cpu", "cuda"})


def _get_value(tracer: Tracer, x: Value) -> Value:
    is_number = isinstance(x, TensorValue) and not x.abstract.dim() and x.abstract.dtype == torch.float32
    if is_number and x.abstract.device.type in _WITH_FLOAT64:  # type: ignore[attr-defined]
        return x.call_method(tracer, "double", [], {})
    return x


def _scaled_quotient(method: Callable[..., Any], symbol: str) -> Callable[..., Value]:
    """addcdiv, addcmul: `value` may be a 0-dim tensor, which torch would read."""

    def call(tracer: Tracer, self: Value, first: Value, second: Value, *, value: Value = ONE, **more: Value) -> Value:
        if not isinstance(value, TensorValue):
            return call_torch(tracer, method, [self, first, second], {"value": value, **more})
        term = binary(tracer, "*", binary(tracer, symbol, first, second), value)
        return self.call_method(tracer, "add_" if method.__name__.endswith("_") else "add", [term], more)

    return call


def _scaled_sum(method: Callable[..., Any]) -> Callable[..., Value]:
    """add, sub: `alpha` may be a 0-dim tensor."""

    def call(tracer: Tracer, self: Value, other: Value, *, alpha: Value = ONE, **more: Value) -> Value:
        if not isinstance(alpha, TensorValue):
            return call_torch(tracer, method, [self, other], more if alpha is ONE else {"alpha": alpha, **more})
        return call_torch(tracer, method, [self, binary(tracer, "*", other, alpha)], more)

    return call


def group_tensors(lists: Any, with_indices: bool = False) -> Any:
    """What multi-tensor code is given: the lists, split by device and dtype of the first one's tensors."""
    groups: dict[Any, list[int]] = {}
    for at, tensor in enumerate(lists[0]):
        groups.setdefault((tensor.device, tensor.dtype), []).append(at)
    return {
        key: ([[column[at] for at in places] if column else [] for column in lists], places if with_indices else [])
        for key, places in groups.items()
    }


def _fused(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    """One kernel for a whole step, which writes lists of tensors: there is nothing to fuse with it."""
    raise UnsupportedCall("a fused optimizer step")


_TENSOR = torch.Tensor
OPTIMIZERS: dict[Any, Callable[..., Value]] = {
    TORCH.value_of_step: _get_value,
    TORCH.group_tensors: inlined(group_tensors),
    **{getattr(torch, name): _fused for name in dir(torch) if name.startswith("_fused_ad") or name == "_fused_sgd_"},
    **{method: _scaled_quotient(method, "/") for method in (_TENSOR.addcdiv, _TENSOR.addcdiv_, torch.addcdiv)},
    **{method: _scaled_quotient(method, "*") for method in (_TENSOR.addcmul, _TENSOR.addcmul_, torch.addcmul)},
    **{method: _scaled_sum(method) for method in (_TENSOR.add_, _TENSOR.sub_)},
}
