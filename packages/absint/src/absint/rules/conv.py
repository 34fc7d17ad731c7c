"""Rules of convolutions and their backwards.

A result is channels-last where the input or the weight looks channels-last, else row-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, shaped
from absint.meta import Meta
from absint.rules.shapes import fresh, masked
from absint.rules.table import Constraint, Refused, Rule, RuleTable, f32
from absint.strides import stride_of_format, suggest_format

TABLE = RuleTable()
Sizes = Sequence[int]
_ONE_SPATIAL_DIMENSION = 3


def _at(values: Sizes, position: int) -> int:
    return values[position] if len(values) > 1 else values[0]


def _spatial(
    input: Meta, weight: Meta, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool, output_padding: Sizes
) -> tuple[int, ...]:
    sizes = []
    for position, size in enumerate(input.shape[2:]):
        kernel = _at(dilation, position) * (weight.shape[2 + position] - 1) + 1
        if transposed:
            size = (size - 1) * _at(stride, position) - 2 * _at(padding, position) + kernel
            size = size + _at(output_padding, position)
        else:
            padded = size + 2 * _at(padding, position)
            if padded < kernel:
                raise TypeRuleError(f"a kernel of {kernel} is larger than the padded input of {padded}")
            size = (padded - kernel) // _at(stride, position) + 1
        sizes.append(size)
    return tuple(sizes)


def _with_height(meta: Meta) -> Meta:
    """`unsqueeze(2)`: eager runs one spatial dimension as two of which the first has size one."""
    shape = (*meta.shape[:2], 1, meta.shape[2])
    stride = (*meta.stride[:2], meta.shape[2] * meta.stride[2], meta.stride[2])
    return Meta(shape, stride, meta.dtype, meta.device)


def _format(input: Meta, weight: Meta, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == _ONE_SPATIAL_DIMENSION:
        # A permuted input is made row-major first, so that only the weight can ask for channels-last.
        tall = (*shape[:2], 1, shape[2])
        stride = _format(_with_height(fresh(input)), _with_height(weight), tall)
        return (*stride[:2], stride[3])
    chosen = suggest_format(input)
    if chosen is torch.contiguous_format:
        chosen = suggest_format(weight)
    return stride_of_format(shape, chosen)


def _check(input: Meta, weight: Meta, transposed: bool, groups: int) -> None:
    if input.ndim != weight.ndim:
        raise TypeRuleError(f"the input has {input.ndim} dimensions, the weight {weight.ndim}")
    expected = weight.shape[0] if transposed else weight.shape[1] * groups
    if input.shape[1] != expected:
        raise TypeRuleError(f"the input has {input.shape[1]!r} channels, the weight is for {expected!r}")


def _channels(weight: Meta, transposed: bool, groups: int) -> int:
    return weight.shape[1] * groups if transposed else weight.shape[0]


_ONES = ([1, 1], [0, 0], [1, 1], False, [0, 0])
_BIAS = Constraint(
    "C1", "bias has an element for each channel of the result", lambda weight, bias, transposed, groups: (
        bias is None or bias.shape == (_channels(weight, transposed, groups),)
    ),
    Refused("convolution", (f32(1, 3, 4, 4), f32(2, 3, 1, 1), f32(3), *_ONES, 1)),
)  # fmt: skip
_GROUPS = Constraint(
    "C2", "the groups divide the channels of the weight",
    lambda weight, groups: groups > 0 and weight.shape[0] >= groups and weight.shape[0] % groups == 0,
    Refused("convolution", (f32(1, 2, 4, 4), f32(3, 1, 1, 1), None, *_ONES, 2)),
)  # fmt: skip


def _convolution(
    input: Meta, weight: Meta, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool, output_padding: Sizes,
    groups: int,
) -> Meta:  # fmt: skip
    _check(input, weight, transposed, groups)
    spatial = _spatial(input, weight, stride, padding, dilation, transposed, output_padding)
    shape = (input.shape[0], _channels(weight, transposed, groups), *spatial)
    return Meta(shape, _format(input, weight, shape), input.dtype, input.device)


def _convolution_backward(
    grad_output: Meta, input: Meta, weight: Meta, output_mask: Sequence[bool]
) -> tuple[Meta | None, ...]:
    grad_input = Meta(input.shape, _format(input, weight, input.shape), input.dtype, input.device)
    grad_weight = Meta(weight.shape, _format(input, weight, weight.shape), weight.dtype, weight.device)
    grad_bias = Meta(grad_output.shape[1:2], (1,), weight.dtype, weight.device)
    return masked(output_mask, grad_input, grad_weight, grad_bias)


def _of_one_pixel(input: Meta, weight: Meta, bias: Meta | None, padding: Sizes, groups: int) -> dict[str, Any]:
    """A kernel of one pixel over an image that is larger than its padding."""
    extent, channels = 2 * max([0, *padding]) + 1, max(groups, 1)
    return {
        "input": shaped(input, [1, channels, *[extent] * (input.ndim - 2)][: input.ndim]),
        "weight": shaped(weight, [channels, *[1] * (weight.ndim - 1)][: weight.ndim]),
        "bias": None if bias is None else shaped(bias, [channels] * bias.ndim),
    }


TABLE.rows({
    "convolution _convolution": Rule(_convolution, (_GROUPS, _BIAS), Question(of=_of_one_pixel)),
    "convolution_backward": _convolution_backward,
})  # fmt: skip
