"""Rules of pooling, interpolation, padding and patches (im2col), with their backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, ones, shaped
from absint.meta import Meta, contiguous
from absint.rules.constraint import Constraint, Refused, f32
from absint.rules.movement import like
from absint.rules.table import RuleTable
from absint.strides import preserve_stride, stride_of_format, suggest_format

__all__ = ["TABLE"]

TABLE = RuleTable()
Sizes = Sequence[int]


def _formatted(like: Meta, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Meta:
    """A fresh tensor of `shape` in the memory format that `like` suggests."""
    chosen = suggest_format(like) if len(shape) == like.ndim else torch.contiguous_format
    return Meta(shape, stride_of_format(shape, chosen), dtype or like.dtype, like.device)


def _each(value: int | Sizes, count: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * count if len(value) == 1 else tuple(value)


def pool_size(size: int, kernel: int, padding: int, stride: int, dilation: int, ceil_mode: bool) -> int:
    """One spatial size of a pooling result (`pooling_output_shape`)."""
    extent = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (extent + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count = count - 1
    if count <= 0:
        raise TypeRuleError(f"Given input size {size}, output size {count} is too small")
    return count


def _pooled(
    self: Meta,
    rank: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: int | Sizes,
    dilation: int | Sizes,
    ceil_mode: bool,
) -> tuple[int, ...]:
    kernel = _each(kernel_size, rank)
    step = _each(stride, rank) if stride else kernel
    pad, spread = _each(padding, rank), _each(dilation, rank)
    spatial = [
        pool_size(size, kernel[i], pad[i], step[i], spread[i], ceil_mode) for i, size in enumerate(self.shape[-rank:])
    ]
    return (*self.shape[:-rank], *spatial)


def _max_pool(rank: int, keeps_format: bool) -> Any:
    def rule(
        self: Meta,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: int | Sizes = 0,
        dilation: int | Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[Meta, Meta]:
        shape = _pooled(self, rank, kernel_size, stride, padding, dilation, ceil_mode)
        if keeps_format:
            return _formatted(self, shape), _formatted(self, shape, torch.int64)
        return contiguous(shape, self.dtype, self.device), contiguous(shape, torch.int64, self.device)

    return rule


TABLE.add("max_pool2d_with_indices", _max_pool(2, True))
TABLE.add("max_pool3d_with_indices", _max_pool(3, True))


def _avg_pool(rank: int) -> Any:
    def rule(
        self: Meta,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: int | Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Meta:
        shape = _pooled(self, rank, kernel_size, stride, padding, 1, ceil_mode)
        return _formatted(self, shape)

    return rule


for _rank in (2, 3):
    TABLE.add(f"avg_pool{_rank}d", _avg_pool(_rank))


@TABLE.rule(
    """max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward
    avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
    adaptive_max_pool2d_backward adaptive_max_pool3d_backward"""
)
def _pool_backward(grad_output: Meta, self: Meta, *_: Any, **__: Any) -> Meta:
    return _formatted(self, self.shape)


_ADAPTIVE = "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d"


@TABLE.rule("_adaptive_avg_pool2d _adaptive_avg_pool3d")
def _adaptive_avg(self: Meta, output_size: Sizes) -> Meta:
    return _formatted(self, (*self.shape[: -len(output_size)], *output_size))


@TABLE.rule("adaptive_max_pool2d adaptive_max_pool3d")
def _adaptive_max(self: Meta, output_size: Sizes) -> tuple[Meta, Meta]:
    shape = (*self.shape[: -len(output_size)], *output_size)
    return _formatted(self, shape), _formatted(self, shape, torch.int64)


_UPSAMPLE = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""


def _upsample(self: Meta, output_size: Sizes, *_: Any, **__: Any) -> Meta:
    return _formatted(self, (*self.shape[:2], *output_size))


def _upsample_backward(grad_output: Meta, output_size: Sizes, input_size: Sizes, *_: Any, **__: Any) -> Meta:
    if len(output_size) == 3:
        return contiguous(input_size, grad_output.dtype, grad_output.device)
    return _formatted(grad_output, tuple(input_size))


for _name in _UPSAMPLE.split():
    TABLE.add(_name, _upsample)
    TABLE.add(f"{_name}_backward", _upsample_backward)


def _padded(self: Meta, pad: Sizes) -> tuple[int, ...]:
    shape = list(self.shape)
    for position in range(len(pad) // 2):
        dim = self.ndim - 1 - position
        shape[dim] = shape[dim] + pad[2 * position] + pad[2 * position + 1]
        if shape[dim] < 0:
            raise TypeRuleError(
                f"The input size {self.shape[dim]}, plus negative padding {pad[2 * position]} and "
                f"{pad[2 * position + 1]} resulted in a negative output size, which is invalid."
            )
    return tuple(shape)


_PAIRS = Constraint(
    "C1", "pad has a pair of numbers for each of the last dimensions, or of some",
    lambda self, pad, value=0: len(pad) % 2 == 0 and len(pad) <= 2 * self.ndim,
    Refused("constant_pad_nd", (f32(2, 3), [1, 1, 1])),
)  # fmt: skip


@TABLE.rule("constant_pad_nd", requires=(_PAIRS,))
def _constant_pad(self: Meta, pad: Sizes, value: Any = 0) -> Meta:
    shape = _padded(self, pad)
    if all(isinstance(n, int) and n <= 0 for n in pad):
        # Cropping alone clones the narrowed view.
        return Meta(shape, preserve_stride(shape, self.stride), self.dtype, self.device)
    return _formatted(self, shape)


_PADS = """
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
"""


def _reflects(self: Meta, padding: Sizes) -> bool:
    sizes = [size for size in reversed(self.shape) for _ in range(2)]
    return all(amount < size for amount, size in zip(padding, sizes, strict=False))


_REFLECTS = Constraint(
    "C1", "padding is smaller than the dimension that it reflects", _reflects,
    Refused("reflection_pad1d", (f32(1, 2), [3, 3])),
)  # fmt: skip


def _pad_contiguous(self: Meta, padding: Sizes) -> Meta:
    return contiguous(_padded(self, padding), self.dtype, self.device)


def _pad_formatted(self: Meta, padding: Sizes) -> Meta:
    return _formatted(self, _padded(self, padding))


for _name, _pad, _requires in (
    ("reflection_pad1d", _pad_contiguous, (_REFLECTS,)),
    ("reflection_pad2d", _pad_formatted, (_REFLECTS,)),
    ("reflection_pad3d", _pad_contiguous, (_REFLECTS,)),
    ("replication_pad1d", _pad_contiguous, ()),
    ("replication_pad2d", _pad_formatted, ()),
    ("replication_pad3d", _pad_formatted, ()),
):
    TABLE.add(_name, _pad, _requires)


@TABLE.rule("reflection_pad1d_backward reflection_pad3d_backward replication_pad1d_backward")
def _pad_backward_contiguous(grad_output: Meta, self: Meta, padding: Sizes) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("reflection_pad2d_backward replication_pad2d_backward replication_pad3d_backward")
def _pad_backward(grad_output: Meta, self: Meta, padding: Sizes) -> Meta:
    return _formatted(self, self.shape)


def _holds_a_patch(self: Meta, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> bool:
    spans = zip(self.shape[-2:], kernel_size, dilation, padding, strict=False)
    return all(size + 2 * pad - spread * (kernel - 1) >= 1 for size, kernel, spread, pad in spans)


_PATCH = Constraint(
    "C1", "a patch is no larger than the padded image", _holds_a_patch,
    Refused("im2col", (f32(1, 1, 5, 5), [11, 11], [1, 1], [0, 0], [1, 1])),
)  # fmt: skip


@TABLE.rule("im2col", requires=(_PATCH,))
def _im2col(self: Meta, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Meta:
    counts = [
        (self.shape[-2 + i] + 2 * padding[i] - dilation[i] * (kernel_size[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    patch = kernel_size[0] * kernel_size[1]
    shape = (*self.shape[:-3], self.shape[-3] * patch, counts[0] * counts[1])
    return contiguous(shape, self.dtype, self.device)


@TABLE.rule("col2im")
def _col2im(
    self: Meta,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Meta:
    channels = self.shape[-2] // (kernel_size[0] * kernel_size[1])
    return contiguous((*self.shape[:-2], channels, *output_size), self.dtype, self.device)


_SHUFFLES = Constraint(
    "C1", "the square of the factor divides the channels",
    lambda self, upscale_factor: self.ndim < 3 or upscale_factor < 1 or self.shape[-3] % upscale_factor**2 == 0,
    Refused("pixel_shuffle", (f32(1, 3, 2, 2), 2)),
)  # fmt: skip


@TABLE.rule("pixel_shuffle", requires=(_SHUFFLES,))
def _pixel_shuffle(self: Meta, upscale_factor: int) -> Meta:
    factor = upscale_factor
    *batch, channels, height, width = self.shape
    return _formatted(self, (*batch, channels // (factor * factor), height * factor, width * factor))


_UNSHUFFLES = Constraint(
    "C1", "the factor divides height and width", lambda self, downscale_factor: (
        self.ndim < 2 or downscale_factor < 1 or all(size % downscale_factor == 0 for size in self.shape[-2:])
    ),
    Refused("pixel_unshuffle", (f32(1, 1, 3, 3), 2)),
)  # fmt: skip


@TABLE.rule("pixel_unshuffle", requires=(_UNSHUFFLES,))
def _pixel_unshuffle(self: Meta, downscale_factor: int) -> Meta:
    factor = downscale_factor
    if 0 in self.shape:
        return like(self, None)  # eager clones an empty image, and leaves its shape as it is
    *batch, channels, height, width = self.shape
    return _formatted(self, (*batch, channels * factor * factor, height // factor, width // factor))


@TABLE.rule("grid_sampler_2d grid_sampler_3d")
def _grid_sampler(input: Meta, grid: Meta, *_: Any) -> Meta:
    rank = input.ndim - 2
    if input.shape[0] != grid.shape[0] or grid.shape[-1] != rank:
        raise TypeRuleError(
            f"grid_sampler(): expected grid to have size {rank} in last dimension and the batch size of input, but got "
            f"input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    shape = (*input.shape[:2], *grid.shape[1:-1])
    return contiguous(shape, input.dtype, input.device)


@TABLE.rule("grid_sampler_2d_backward grid_sampler_3d_backward")
def _grid_sampler_backward(
    grad_output: Meta, input: Meta, grid: Meta, mode: int, padding: int, align: bool, mask: Sequence[bool]
) -> tuple[Meta | None, Meta]:
    grad_input = contiguous(input.shape, input.dtype, input.device) if mask[0] else None
    return grad_input, contiguous(grid.shape, grid.dtype, grid.device)


@TABLE.rule("max_unpool2d")
def _max_unpool2d(self: Meta, indices: Meta, output_size: Sizes) -> Meta:
    return _formatted(self, (*self.shape[:-2], *output_size))


@TABLE.rule("max_unpool3d")
def _max_unpool3d(self: Meta, indices: Meta, output_size: Sizes, stride: Sizes, padding: Sizes) -> Meta:
    return contiguous((*self.shape[:-3], *output_size), self.dtype, self.device)


@TABLE.rule("fractional_max_pool2d fractional_max_pool3d")
def _fractional_pool(self: Meta, kernel_size: Sizes, output_size: Sizes, random_samples: Meta) -> tuple[Meta, Meta]:
    sizes = tuple(output_size)
    shape = (*self.shape[: self.ndim - len(sizes)], *sizes)
    indices = contiguous(shape, torch.int64, self.device)
    return contiguous(shape, self.dtype, self.device), indices


@TABLE.rule("fractional_max_pool2d_backward fractional_max_pool3d_backward")
def _fractional_pool_backward(grad_output: Meta, self: Meta, *_: Any) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("affine_grid_generator")
def _affine_grid(theta: Meta, size: Sizes, align_corners: bool) -> Meta:
    spatial = tuple(size[2:])
    return contiguous((size[0], *spatial, len(spatial)), theta.dtype, theta.device)


def _largest(*values: Any) -> int:
    """The greatest int among ints and lists of them; 1 where there is none."""
    return max([1, *(n for value in values for n in (value if isinstance(value, (list, tuple)) else (value,)))])


def _windowed(self: Meta, rank: int, extent: int) -> Meta:
    """One image of one channel in which a window of this extent fits; empty dimensions stay so."""
    lead = max(self.ndim - rank, 0)
    extent = max(extent, 1)
    return shaped(self, [0 if n == 0 else 1 if dim < lead else extent for dim, n in enumerate(self.shape)])


def _of_window(rank: int) -> Question:
    def of(self: Meta, kernel_size: Sizes, *rest: Any) -> tuple[Any, ...]:
        # Pooling has (stride, padding, dilation), averages have no dilation there but flags, which are 0 and 1.
        spread = rest[2] if len(rest) > 2 and not isinstance(rest[2], bool) else 1
        return _windowed(self, rank, _largest(kernel_size) * _largest(spread)), kernel_size, *rest

    return Question(of=of)


def _of_outputs(self: Meta, output_size: Sizes, *rest: Any, **_: Any) -> tuple[Any, ...]:
    return ones(self, empties=True), [min(n, 1) for n in output_size], *rest


def _of_padding(self: Meta, padding: Sizes) -> tuple[Any, ...]:
    return _windowed(self, len(padding) // 2, 2 * max((abs(n) for n in padding), default=0) + 1), list(padding)


def _channels(self: Meta, count: int) -> Meta:
    """One pixel of so many channels."""
    return shaped(self, [1 if dim != self.ndim - 3 else max(count, 1) for dim in range(self.ndim)])


def _of_fractions(self: Meta, kernel_size: Sizes, output_size: Sizes, random_samples: Meta) -> tuple[Any, ...]:
    """The samples have one place in each dimension, for every channel."""
    rank = len(output_size)
    image = _windowed(self, random_samples.shape[-1], _largest(kernel_size) + _largest(output_size))
    lead = (1, *image.shape)[-2 - random_samples.shape[-1] : -random_samples.shape[-1]]
    return image, kernel_size, output_size, shaped(random_samples, (*lead, rank))


def _of_grid(input: Meta, grid: Meta, *rest: Any) -> tuple[Any, ...]:
    """The last dimension of the grid is the place in an image."""
    return ones(input, True), shaped(grid, (*ones(grid, True).shape[:-1], *grid.shape[-1:])), *rest


def _of_patches(self: Meta, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> tuple[Any, ...]:
    image = _windowed(self, 2, _largest(kernel_size) * _largest(dilation))
    return image, kernel_size, dilation, padding, stride


for _rank in (2, 3):
    TABLE.ask(f"max_pool{_rank}d_with_indices avg_pool{_rank}d", question=_of_window(_rank))
for _name in (*_UPSAMPLE.split(), *_ADAPTIVE.split()):
    TABLE.ask(_name, question=Question(of=_of_outputs))
TABLE.ask("fractional_max_pool2d fractional_max_pool3d", question=Question(of=_of_fractions))
TABLE.ask(_PADS, question=Question(of=_of_padding))
TABLE.ask("im2col", question=Question(of=_of_patches))
TABLE.ask("pixel_shuffle", question=Question(of=lambda self, factor: (_channels(self, factor * factor), factor)))
TABLE.ask("pixel_unshuffle", question=Question(of=lambda self, factor: (_windowed(self, 2, factor), factor)))
TABLE.ask("grid_sampler_2d grid_sampler_3d", question=Question(of=_of_grid))
TABLE.ask("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward", question=Question(empties=True))
