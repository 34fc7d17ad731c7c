"""Rules of the normalisations and their backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, ones
from absint.meta import Meta, contiguous
from absint.promote import ACC_DTYPE
from absint.rules.shapes import fresh, masked, suggested
from absint.rules.table import Constraint, Refused, Rule, RuleTable, f32
from absint.strides import channels_last_stride, is_channels_last, is_contiguous, suggest_format

TABLE = RuleTable()
Optional = Meta | None
Mask = Sequence[bool]
Gradients = tuple[Meta | None, ...]


def _contiguous_or_suggested(like: Meta) -> Meta:
    """Batch norm keeps the format a tensor is contiguous in, and falls back to the suggested one."""
    shape, stride = like.shape, like.stride
    if is_contiguous(shape, stride):
        return fresh(like)
    if is_channels_last(shape, stride):
        return Meta(shape, channels_last_stride(shape), like.dtype, like.device)
    return suggested(like)


def _statistics(input: Meta, parameter: Optional, shape: Sequence[int]) -> Meta:
    """On CUDA statistics are accumulated wide; on the CPU they take the parameters' dtype."""
    wide = ACC_DTYPE.get(input.dtype, input.dtype)
    own = input.dtype if parameter is None else parameter.dtype
    return fresh(input, shape, own if input.device.type == "cpu" else wide)


def _gradient(parameter: Optional, input: Meta) -> Optional:
    return None if parameter is None else contiguous(parameter.shape, parameter.dtype, input.device)


def _check_normalized(input: Meta, normalized_shape: Sequence[int]) -> None:
    """The last sizes are those of the parameters; where they are symbolic, that fixes them."""
    expected = list(normalized_shape)
    if input.ndim < len(expected) or list(input.shape[input.ndim - len(expected) :]) != expected:
        raise TypeRuleError(f"an input of {list(input.shape)} does not end in {expected}")


def _check_channels(input: Meta, **parameters: Optional) -> None:
    """Each parameter has an element for every channel; a symbolic number of channels is fixed by that."""
    for name, given in parameters.items():
        if given is not None and (input.shape[1],) != given.shape:
            raise TypeRuleError(f"{name} should contain {input.shape[1]} elements, its shape is {list(given.shape)}")


_PARAMETERS_FIT = Constraint(
    "C1", "weight and bias have the normalized shape", lambda normalized_shape, weight, bias: all(
        given is None or given.shape == tuple(normalized_shape) for given in (weight, bias)
    ),
    Refused("native_layer_norm", (f32(4, 2, 6), (2, 6), f32(2, 3), None, 1e-5)),
)  # fmt: skip
_CHANNELS = Constraint(
    "C1", "weight and bias have an element for each channel",
    lambda weight, bias, C: all(given is None or given.shape == (C,) for given in (weight, bias)),
    Refused("native_group_norm", (f32(4, 3), f32(2), None, 4, 3, 1, 1, 1e-5)),
)  # fmt: skip
_DIVIDED = Constraint(
    "C2", "the groups divide the channels", lambda C, group: group > 0 and C % group == 0,
    Refused("native_group_norm", (f32(4, 3), None, None, 4, 3, 1, 2, 1e-5)),
)  # fmt: skip


def _layer_norm(input: Meta, normalized_shape: Sequence[int], weight: Optional, bias: Optional) -> tuple[Meta, ...]:
    axis = input.ndim - len(normalized_shape)
    _check_normalized(input, normalized_shape)
    shape = input.shape[:axis] + (1,) * len(normalized_shape)
    statistics = _statistics(input, weight if weight is not None else bias, shape)
    return fresh(input), statistics, statistics


def _batch_norm(
    input: Meta, weight: Optional, bias: Optional, running_mean: Optional = None, running_var: Optional = None,
    training: bool = True,
) -> tuple[Meta, ...]:  # fmt: skip
    _check_channels(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    size = input.shape[1] if training else 0
    statistics = _statistics(input, weight if weight is not None else running_mean, (size,))
    return _contiguous_or_suggested(input), statistics, statistics


def _batch_norm_reserving(
    input: Meta, weight: Optional, bias: Optional, running_mean: Optional, running_var: Optional
) -> tuple[Meta, ...]:
    return *_batch_norm(input, weight, bias, running_mean, running_var), fresh(input, (0,), torch.uint8)


def _batch_norm_backward(grad_out: Meta, input: Meta, weight: Optional, output_mask: Mask) -> Gradients:
    """The CPU keeps the format that both are contiguous in, and falls back to the suggested one."""
    grads = _statistics(input, weight, (input.shape[1],))
    given = (grad_out, input)
    is_kept = input.device.type != "cpu" or (
        all(is_contiguous(one.shape, one.stride) or is_channels_last(one.shape, one.stride) for one in given)
        and suggest_format(grad_out) == suggest_format(input)
    )
    return masked(output_mask, _contiguous_or_suggested(input) if is_kept else suggested(input), grads, grads)


def _of_one_element(input: Meta, normalized_shape: Sequence[int], weight: Optional, bias: Optional) -> dict[str, Any]:
    ranks = (1,) * len(normalized_shape)
    return {"input": ones(input), "normalized_shape": ranks, "weight": ones(weight), "bias": ones(bias)}


def _of_one_group(input: Meta, weight: Optional, bias: Optional) -> dict[str, Any]:
    sizes = dict.fromkeys(("N", "C", "HxW", "group"), 1)
    return {"input": ones(input), "weight": ones(weight), "bias": ones(bias), **sizes}


TABLE.rows({
    "native_layer_norm": Rule(_layer_norm, (_PARAMETERS_FIT,), Question(of=_of_one_element, drops_sizes=True)),
    "native_layer_norm_backward": lambda input, weight, bias, output_mask: (
        masked(output_mask, fresh(input), _gradient(weight, input), _gradient(bias, input))
    ),
    "_fused_rms_norm_backward": lambda input, weight, output_mask: (
        masked(output_mask, fresh(input), _gradient(weight, input))
    ),
    "native_group_norm": Rule(
        lambda input, weight, bias, N, group: (
            suggested(input), *(_statistics(input, weight if weight is not None else bias, (N, group)),) * 2
        ),
        (_CHANNELS, _DIVIDED), Question(of=_of_one_group, drops_sizes=True),
    ),
    "native_group_norm_backward": lambda input, weight, C, output_mask: masked(
        output_mask, suggested(input), *(fresh(input, (C,), None if weight is None else weight.dtype),) * 2
    ),
    "_batch_norm_no_update": _batch_norm_reserving,
    "native_batch_norm_backward batch_norm_backward": _batch_norm_backward,
})  # fmt: skip
TABLE.rows({
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats": _batch_norm,
    "_native_batch_norm_legit_functional": lambda input, weight, bias, running_mean, running_var, training: (
        *_batch_norm(input, weight, bias, running_mean, running_var, training), running_mean, running_var
    ),
    "_batch_norm_with_update": _batch_norm_reserving,
    "_batch_norm_with_update_functional": lambda input, weight, bias, running_mean, running_var: (
        *_batch_norm_reserving(input, weight, bias, running_mean, running_var), running_mean, running_var
    ),
}, Question(empties=True))  # fmt: skip
