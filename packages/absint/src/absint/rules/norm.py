"""Rules of the normalisations and their backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, ones
from absint.meta import Meta, contiguous
from absint.promote import ACC_DTYPE
from absint.rules.constraint import Constraint, Refused, f32
from absint.rules.table import RuleTable
from absint.strides import (
    channels_last_stride,
    is_channels_last,
    is_contiguous,
    stride_of_format,
    suggest_format,
)

__all__ = ["TABLE"]

TABLE = RuleTable()


def _suggested(like: Meta) -> Meta:
    """`at::empty_like(x, x.suggest_memory_format())`."""
    return Meta(like.shape, stride_of_format(like.shape, suggest_format(like)), like.dtype, like.device)


def _contiguous_or_suggested(like: Meta) -> Meta:
    """Batch norm keeps the format a tensor is contiguous in, and falls back to the suggested one."""
    shape, stride = like.shape, like.stride
    if is_contiguous(shape, stride):
        return contiguous(shape, like.dtype, like.device)
    if is_channels_last(shape, stride):
        return Meta(shape, channels_last_stride(shape), like.dtype, like.device)
    return _suggested(like)


def _statistics_dtype(input: Meta, weight: Meta | None) -> torch.dtype:
    """On CUDA statistics are accumulated wide; on the CPU they take the parameters' dtype."""
    if input.device.type == "cpu":
        return input.dtype if weight is None else weight.dtype
    return ACC_DTYPE.get(input.dtype, input.dtype)


def _check_normalized(input: Meta, normalized_shape: Sequence[int]) -> None:
    """The last sizes are those of the parameters; where they are symbolic, that fixes them."""
    expected = list(normalized_shape)
    if input.ndim < len(expected) or list(input.shape[input.ndim - len(expected) :]) != expected:
        raise TypeRuleError(
            f"Given normalized_shape={expected}, expected input with shape [*, {', '.join(map(str, expected))}], but "
            f"got input of size{list(input.shape)}"
        )


def _check_channels(input: Meta, **parameters: Meta | None) -> None:
    """Each parameter has an element for every channel; a symbolic number of channels is fixed by that."""
    for name, given in parameters.items():
        if given is not None and (input.shape[1],) != given.shape:
            raise TypeRuleError(f"{name} should contain {input.shape[1]} elements, its shape is {list(given.shape)}")


def _is_normalized(
    input: Meta, normalized_shape: Sequence[int], weight: Meta | None, bias: Meta | None, eps: float
) -> bool:
    return all(given is None or given.shape == tuple(normalized_shape) for given in (weight, bias))


_PARAMETERS_FIT = Constraint(
    "C1", "weight and bias have the normalized shape", _is_normalized,
    Refused("native_layer_norm", (f32(4, 2, 6), (2, 6), f32(2, 3), None, 1e-5)),
)  # fmt: skip


@TABLE.rule("native_layer_norm", requires=(_PARAMETERS_FIT,))
def _layer_norm(
    input: Meta, normalized_shape: Sequence[int], weight: Meta | None, bias: Meta | None, eps: float
) -> tuple[Meta, Meta, Meta]:
    axis = input.ndim - len(normalized_shape)
    _check_normalized(input, normalized_shape)
    shape = input.shape[:axis] + (1,) * len(normalized_shape)
    statistics = contiguous(shape, _statistics_dtype(input, weight if weight is not None else bias), input.device)
    return contiguous(input.shape, input.dtype, input.device), statistics, statistics


@TABLE.rule("native_layer_norm_backward")
def _layer_norm_backward(
    grad_out: Meta,
    input: Meta,
    normalized_shape: Sequence[int],
    mean: Meta,
    rstd: Meta,
    weight: Meta | None,
    bias: Meta | None,
    output_mask: Sequence[bool],
) -> tuple[Meta | None, ...]:
    grad_input = contiguous(input.shape, input.dtype, input.device)
    grad_weight = None if weight is None else contiguous(weight.shape, weight.dtype, input.device)
    grad_bias = None if bias is None else contiguous(bias.shape, bias.dtype, input.device)
    wanted = zip((grad_input, grad_weight, grad_bias), output_mask, strict=True)
    return tuple([grad if keep else None for grad, keep in wanted])


@TABLE.rule("_fused_rms_norm_backward")
def _rms_norm_backward(
    grad_out: Meta,
    input: Meta,
    normalized_shape: Sequence[int],
    rstd: Meta,
    weight: Meta | None,
    output_mask: Sequence[bool],
) -> tuple[Meta | None, ...]:
    grad_weight = None if weight is None else contiguous(weight.shape, weight.dtype, input.device)
    wanted = zip((contiguous(input.shape, input.dtype, input.device), grad_weight), output_mask, strict=True)
    return tuple([grad if keep else None for grad, keep in wanted])


def _batch_statistics(input: Meta, weight: Meta | None, training: bool) -> Meta:
    size = input.shape[1] if training else 0
    return contiguous((size,), _statistics_dtype(input, weight), input.device)


@TABLE.rule("native_batch_norm")
def _batch_norm(
    input: Meta,
    weight: Meta | None,
    bias: Meta | None,
    running_mean: Meta | None,
    running_var: Meta | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Meta, Meta, Meta]:
    _check_channels(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    statistics = _batch_statistics(input, weight if weight is not None else running_mean, training)
    return _contiguous_or_suggested(input), statistics, statistics


@TABLE.rule("_native_batch_norm_legit")
def _batch_norm_legit(
    input: Meta, weight: Meta | None, bias: Meta | None, running_mean: Meta, running_var: Meta, *rest: Any
) -> tuple[Meta, Meta, Meta]:
    return _batch_norm(input, weight, bias, running_mean, running_var, *rest)


@TABLE.rule("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    input: Meta, weight: Meta | None, bias: Meta | None, training: bool, momentum: float, eps: float
) -> tuple[Meta, Meta, Meta]:
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)


@TABLE.rule("_native_batch_norm_legit_functional")
def _batch_norm_functional(
    input: Meta,
    weight: Meta | None,
    bias: Meta | None,
    running_mean: Meta,
    running_var: Meta,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Meta, ...]:
    results = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return (*results, running_mean, running_var)


@TABLE.rule("native_batch_norm_backward")
def _batch_norm_backward(
    grad_out: Meta,
    input: Meta,
    weight: Meta | None,
    running_mean: Meta | None,
    running_var: Meta | None,
    save_mean: Meta | None,
    save_invstd: Meta | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Meta | None, ...]:
    grads = contiguous((input.shape[1],), _statistics_dtype(input, weight), input.device)
    wanted = zip((_contiguous_or_suggested(input), grads, grads), output_mask, strict=True)
    return tuple([grad if keep else None for grad, keep in wanted])


def _are_channels(
    input: Meta, weight: Meta | None, bias: Meta | None, N: int, C: int, HxW: int, group: int, eps: float
) -> bool:
    return all(given is None or given.shape == (C,) for given in (weight, bias))


def _is_divided(
    input: Meta, weight: Meta | None, bias: Meta | None, N: int, C: int, HxW: int, group: int, eps: float
) -> bool:
    return group > 0 and C % group == 0


_CHANNELS = Constraint(
    "C1", "weight and bias have an element for each channel", _are_channels,
    Refused("native_group_norm", (f32(4, 3), f32(2), None, 4, 3, 1, 1, 1e-5)),
)  # fmt: skip
_DIVIDED = Constraint(
    "C2", "the groups divide the channels", _is_divided,
    Refused("native_group_norm", (f32(4, 3), None, None, 4, 3, 1, 2, 1e-5)),
)  # fmt: skip


@TABLE.rule("native_group_norm", requires=(_CHANNELS, _DIVIDED))
def _group_norm(
    input: Meta,
    weight: Meta | None,
    bias: Meta | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Meta, Meta, Meta]:
    dtype = _statistics_dtype(input, weight if weight is not None else bias)
    statistics = contiguous((N, group), dtype, input.device)
    return _suggested(input), statistics, statistics


@TABLE.rule("native_group_norm_backward")
def _group_norm_backward(
    grad_out: Meta,
    input: Meta,
    mean: Meta,
    rstd: Meta,
    weight: Meta | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Meta | None, ...]:
    grads = contiguous((C,), input.dtype if weight is None else weight.dtype, input.device)
    wanted = zip((_suggested(input), grads, grads), output_mask, strict=True)
    return tuple([grad if keep else None for grad, keep in wanted])


@TABLE.rule("_batch_norm_with_update _batch_norm_no_update")
def _batch_norm_reserving(
    input: Meta,
    weight: Meta | None,
    bias: Meta | None,
    running_mean: Meta | None,
    running_var: Meta | None,
    momentum: float,
    eps: float,
) -> tuple[Meta, ...]:
    results = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return (*results, contiguous((0,), torch.uint8, input.device))


@TABLE.rule("_batch_norm_with_update_functional")
def _batch_norm_update_functional(
    input: Meta, weight: Meta | None, bias: Meta | None, running_mean: Meta, running_var: Meta, *rest: Any
) -> tuple[Meta, ...]:
    results = _batch_norm_reserving(input, weight, bias, running_mean, running_var, *rest)
    return (*results, running_mean, running_var)


@TABLE.rule("batch_norm_backward")
def _batch_norm_backward_reserving(
    grad_out: Meta,
    input: Meta,
    weight: Meta,
    running_mean: Meta | None,
    running_var: Meta | None,
    save_mean: Meta | None,
    save_var: Meta | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Meta,
) -> tuple[Meta | None, ...]:
    return _batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


def _of_one_element(
    input: Meta, normalized_shape: Sequence[int], weight: Meta | None, bias: Meta | None, eps: float
) -> tuple[Any, ...]:
    return ones(input), (1,) * len(normalized_shape), ones(weight), ones(bias), eps


def _groups_of_one(
    input: Meta, weight: Meta | None, bias: Meta | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Any, ...]:
    return ones(input), ones(weight), ones(bias), 1, 1, 1, 1, eps


TABLE.ask("native_layer_norm", question=Question(of=_of_one_element, drops_sizes=True))
TABLE.ask("native_group_norm", question=Question(of=_groups_of_one, drops_sizes=True))
TABLE.ask(
    """native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional
    _batch_norm_with_update _batch_norm_with_update_functional""",
    question=Question(empties=True),
)
