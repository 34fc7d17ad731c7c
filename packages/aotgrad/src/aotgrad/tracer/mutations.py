"""Writing ops in functional form: compute what would be written, then let the memory have that value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from absint.meta import Meta
from absint.overlap import reads_what_it_writes
from absint.schema import OpRecord, argument_value
from absint.strides import contiguous_stride
from aotgrad.errors import GeneratorArgument, NoFunctionalForm, NoInverse
from aotgrad.tracer.custom_writers import has_twin, run_twin
from aotgrad.tracer.values import Traced
from stagewire.graph import Ref
from stagewire.types import reach

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from aotgrad.tracer.mode import TraceMode


aten = torch.ops.aten


def write_arguments(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record an op that writes into arguments, and return what the op returns."""
    if kwargs.get("generator") is not None:
        raise GeneratorArgument(f"{record.name} with a generator of its own")
    kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
    mode.result_types(record, args, kwargs)  # refuses what eager refuses
    operand = reads_what_it_writes(record, args, kwargs, lambda tensor: tensor.memory)
    if operand is not None:
        raise NoInverse(f"{record.name} reads elements of {operand.meta} that it writes")
    targets = [argument_value(write, args, kwargs) for write in record.writes]
    if has_twin(record):
        return run_twin(mode, record, args, kwargs)
    special = _SPECIAL.get(record.name)
    if special is not None:
        results = special(mode, args, kwargs)
    else:
        if record.name == "aten.normal_.default" and _has_gaps(targets[0].meta):
            # Its kernel draws whole blocks where memory is dense, and the functional op works on a dense copy.
            raise NoFunctionalForm("normal_ on memory with gaps draws in an order of its own")
        if record.functional is None:
            raise NoFunctionalForm(f"{record.name} writes into its arguments")
        named = {k: mode.refs(v) for k, v in kwargs.items() if k not in record.out_names}
        operands = tuple([mode.refs(a) for a in args])
        results = mode.emit(record.functional, _with_defaults(record, operands, named), named)
    _assign_all(mode, targets, results)
    if not record.func._schema.returns:
        return None
    if None in record.aliases:
        raise NoFunctionalForm(f"{record.name} returns fresh tensors beside those it writes")
    sources = tuple([argument_value(alias, args, kwargs) for alias in record.aliases if alias is not None])
    return sources[0] if len(sources) == 1 else sources


def _has_gaps(meta: Meta) -> bool:
    """Whether the elements are not all of a stretch of memory."""
    return bool(reach(meta.shape, meta.stride) > math.prod(meta.shape))


def _with_defaults(record: OpRecord, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments left at the writing op's default that the functional op has no default for (bernoulli's p)."""
    wanted = record.functional._schema.arguments[len(args) :]
    if not any(not a.has_default_value() and not a.kwarg_only and a.name not in named for a in wanted):
        return args
    defaults = {a.name: a.default_value for a in record.func._schema.arguments if a.has_default_value()}
    return args + tuple(defaults[a.name] for a in wanted if a.name in defaults and not a.kwarg_only)


def _assign_all(mode: TraceMode, targets: list[Any], results: Any) -> None:
    if len(targets) == 1:
        results = (results,)
    for target, result in zip(targets, results, strict=True):
        if isinstance(target, (list, tuple)):
            for one, value in zip(target, result, strict=True):
                assign(mode, one, value)
        elif target is not None:
            assign(mode, target, result)


def assign(mode: TraceMode, target: Traced, value: Ref) -> None:
    """Write `value` into `target`, cast to its dtype and device and broadcast to its shape."""
    meta = mode.recorder.metas[value.name]
    wanted = target.meta
    options: dict[str, Any] = {}
    if meta.dtype != wanted.dtype:
        options["dtype"] = wanted.dtype
    if meta.device != wanted.device:
        options["device"] = wanted.device
    if options:
        value = mode.emit(aten._to_copy.default, (value,), options)
    if meta.shape != wanted.shape:
        value = mode.emit(aten.expand.default, (value, list(wanted.shape)), {})
    mode.write(target, value)


def _fill(mode: TraceMode, target: Traced, number: Any) -> Ref:
    meta = target.meta
    if meta.stride == contiguous_stride(meta.shape):
        options = {"dtype": meta.dtype, "device": meta.device}
        return mode.emit(aten.full.default, (list(meta.shape), number), options)
    return mode.emit(aten.fill.Scalar, (mode.content(target), number), {})


def _bernoulli_number(mode: TraceMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ref:
    """A mask of one probability, drawn as bool (the stream is the same) so that a quarter of the bytes is saved; for
    float64 a GPU draws from a stream of other numbers."""
    meta = args[0].meta
    order, inverse = _memory_order(meta)
    is_another_stream = meta.dtype is torch.float64 and meta.device.type != "cpu"
    options = {"dtype": torch.float64 if is_another_stream else torch.bool, "device": meta.device}
    like = mode.emit(aten.full.default, ([meta.shape[d] for d in order], 0), options)
    drawn = mode.emit(aten.bernoulli.p, (like, args[1] if len(args) > 1 else kwargs.get("p", 0.5)), {})
    if inverse != list(range(meta.ndim)):
        drawn = mode.emit(aten.permute.default, (drawn, inverse), {})
    same = meta.dtype is options["dtype"]
    return drawn if same else mode.emit(aten._to_copy.default, (drawn,), {"dtype": meta.dtype})


def _bernoulli_tensor(mode: TraceMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ref:
    meta = args[0].meta
    order, inverse = _memory_order(meta)
    probability = mode.refs(args[1] if len(args) > 1 else kwargs["p"])
    probability = mode.emit(aten.expand.default, (probability, list(meta.shape)), {})
    probability = mode.emit(aten.permute.default, (probability, order), {})
    turned = mode.emit(aten.permute.default, (mode.content(args[0]), order), {})
    drawn = mode.emit(aten.bernoulli.Tensor, (turned, probability), {})
    return mode.emit(aten.permute.default, (drawn, inverse), {})


def _memory_order(meta: Meta) -> tuple[list[int], list[int]]:
    """Filling in place draws in memory order, a functional op in row-major order: the one as a turn of the other."""
    order = sorted(range(meta.ndim), key=lambda d: -meta.stride[d])
    return order, [order.index(d) for d in range(meta.ndim)]


_SPECIAL: dict[str, Any] = {
    "aten.bernoulli_.float": _bernoulli_number,
    "aten.bernoulli_.Tensor": _bernoulli_tensor,
    "aten.copy_.default": lambda mode, args, kwargs: mode.refs(args[1]),
    "aten.fill_.Scalar": lambda mode, args, kwargs: _fill(mode, args[0], args[1]),
    "aten.polygamma_.default": lambda mode, args, kwargs: mode.emit(
        aten.polygamma.default, (args[1], mode.refs(args[0])), {}
    ),
    "aten.zero_.default": lambda mode, args, kwargs: _fill(mode, args[0], False if args[0].dtype is torch.bool else 0),
}


def _batch_norm(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """native_batch_norm updates the running statistics, though its schema does not say so."""
    if not args[5] or (args[3] is None and args[4] is None):  # not in training, or nothing to update
        return mode.compute(aten.native_batch_norm.default, args)
    refs = _updated(mode, aten._native_batch_norm_legit_functional.default, args)
    if not mode.keeps_statistics:
        # So that what is computed here does not depend on statistics that may have been overwritten since.
        return mode.compute(aten.native_batch_norm.default, (*args[:3], None, None, *args[5:]))
    return mode.tensors(refs)


def _updated(mode: TraceMode, func: OpOverload, args: tuple[Any, ...]) -> tuple[Ref, ...]:
    """The results of a batch norm without the running statistics: it gives them last, and its operands take them."""
    *results, mean, variance = mode.emit(func, tuple([mode.refs(a) for a in args]), {})
    mode.counts_writes = False  # eager's kernel writes them without counting
    assign(mode, args[3], mean)
    assign(mode, args[4], variance)
    mode.counts_writes = True
    return tuple(results)


def _cudnn_batch_norm(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """cuDNN's is the same to rounding, and has room for its own backward, which is not used."""
    room = mode.emit(aten.zeros.default, ([0],), {"dtype": torch.uint8, "device": args[0].meta.device})
    return (*_batch_norm(mode, record, args, kwargs), *mode.tensors((room,)))


def _batch_norm_with_update(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same, and a result for the use of its kernel alone."""
    return mode.tensors(_updated(mode, aten._batch_norm_with_update_functional.default, args))


def _rrelu(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """rrelu_with_noise writes the slopes that it draws into its second argument, and returns a row-major tensor."""
    if kwargs.get("generator") is not None or any(isinstance(a, torch.Generator) for a in args):
        raise GeneratorArgument(f"{record.name} with a generator of its own")
    operands = tuple([mode.refs(a) for a in args[:5]])
    result, noise = mode.emit(aten.rrelu_with_noise_functional.default, operands, {})
    assign(mode, args[1], noise)
    if record.name == "aten.rrelu_with_noise.default":
        result = mode.emit(aten.clone.default, (result,), {"memory_format": torch.contiguous_format})
        return mode.fresh(result, mode.recorder.metas[result.name])
    assign(mode, args[0], result)
    return args[0]


# Ops that write arguments beside what they return, or without saying so.
HIDDEN_WRITERS: dict[str, Any] = {
    "aten.native_batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit.default": _batch_norm,
    "aten.cudnn_batch_norm.default": _cudnn_batch_norm,
    "aten._batch_norm_with_update.default": _batch_norm_with_update,
    "aten.rrelu_with_noise.default": _rrelu,
    "aten.rrelu_with_noise_.default": _rrelu,
}
