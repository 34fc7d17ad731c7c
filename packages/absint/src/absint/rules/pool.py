"""Rules of pooling, interpolation, padding and patches (im2col), with their backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, ones, shaped
from absint.meta import Meta
from absint.rules.shapes import empty_like, formatted, fresh, suggested
from absint.rules.table import Constraint, Refused, Rule, RuleTable, TypeOf, f32
from absint.strides import preserve_stride, suggest_format

TABLE = RuleTable()
Sizes = Sequence[int]


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
        raise TypeRuleError(f"Given input size {size!r}, output size {count!r} is too small")
    return count


def _pooled(
    self: Meta, rank: int, kernel_size: Sizes, stride: Sizes, padding: int | Sizes, dilation: int | Sizes,
    ceil_mode: bool,
) -> tuple[int, ...]:  # fmt: skip
    kernel = _each(kernel_size, rank)
    step = _each(stride, rank) if stride else kernel
    pad, spread = _each(padding, rank), _each(dilation, rank)
    spatial = [
        pool_size(size, kernel[i], pad[i], step[i], spread[i], ceil_mode) for i, size in enumerate(self.shape[-rank:])
    ]
    return (*self.shape[:-rank], *spatial)


def _max_pool(rank: int) -> TypeOf:
    def type_of(
        self: Meta, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
    ) -> tuple[Meta, Meta]:
        shape = _pooled(self, rank, kernel_size, stride, padding, dilation, ceil_mode)
        return formatted(self, shape), formatted(self, shape, torch.int64)

    return type_of


def _avg_pool(rank: int, laid_out: TypeOf) -> TypeOf:
    return lambda self, kernel_size, stride, padding, ceil_mode: laid_out(
        self, _pooled(self, rank, kernel_size, stride, padding, 1, ceil_mode)
    )


_HOLDS_A_WINDOW = Constraint(
    "C1", "a window is no larger than the volume, without its padding", lambda self, kernel_size: all(
        size >= kernel for size, kernel in zip(self.shape[-3:], _each(kernel_size, 3), strict=False)
    ),
    Refused("avg_pool3d", (f32(1, 2, 5, 1, 5), [2, 3, 4], [1, 2, 2], [0, 1, 2])),
)  # fmt: skip


def _adaptive(self: Meta, output_size: Sizes, dtype: torch.dtype | None = None) -> Meta:
    """Of volumes row-major, in whatever format they are."""
    shape = (*self.shape[: -len(output_size)], *output_size)
    return formatted(self, shape, dtype) if len(output_size) == 2 else fresh(self, shape, dtype)


def _padded(self: Meta, pad: Sizes) -> tuple[int, ...]:
    shape = list(self.shape)
    for position in range(len(pad) // 2):
        dim = self.ndim - 1 - position
        shape[dim] = shape[dim] + pad[2 * position] + pad[2 * position + 1]
        if shape[dim] < 0:
            raise TypeRuleError(f"padding cuts more than the {self.shape[dim]!r} elements of dimension {dim}")
    return tuple(shape)


_PAIRS = Constraint(
    "C1", "pad has a pair of numbers for each of the last dimensions, or of some",
    lambda self, pad: len(pad) % 2 == 0 and len(pad) <= 2 * self.ndim,
    Refused("constant_pad_nd", (f32(2, 3), [1, 1, 1])),
)  # fmt: skip


def _cuts_within(self: Meta, pad: Sizes) -> bool:
    sizes = [size for size in reversed(self.shape) for _ in range(2)]
    cut = [min(amount, 0) if isinstance(amount, int) else 0 for amount in pad]
    return all(size + before + after >= 0 for size, before, after in zip(sizes[::2], cut[::2], cut[1::2], strict=False))


_CUTS = Constraint(
    "C2", "what is cut off is no more than there is, whatever is added", _cuts_within,
    Refused("constant_pad_nd", (f32(1), [2, -2])),
)  # fmt: skip


def _constant_pad(self: Meta, pad: Sizes) -> Meta:
    shape = _padded(self, pad)
    if all(isinstance(n, int) and n <= 0 for n in pad):
        # Cropping alone clones the narrowed view.
        return Meta(shape, preserve_stride(shape, self.stride), self.dtype, self.device)
    return formatted(self, shape)


def _reflects(self: Meta, padding: Sizes) -> bool:
    sizes = [size for size in reversed(self.shape) for _ in range(2)]
    return all(amount < size for amount, size in zip(padding, sizes, strict=False))


_REFLECTS = Constraint(
    "C1", "padding is smaller than the dimension that it reflects", _reflects,
    Refused("reflection_pad1d", (f32(1, 2), [3, 3])),
)  # fmt: skip


_PATCH = Constraint(
    "C1", "a patch is no larger than the padded image", lambda self, kernel_size, dilation, padding: all(
        size + 2 * pad - spread * (kernel - 1) >= 1
        for size, kernel, spread, pad in zip(self.shape[-2:], kernel_size, dilation, padding, strict=False)
    ),
    Refused("im2col", (f32(1, 1, 5, 5), [11, 11], [1, 1], [0, 0], [1, 1])),
)  # fmt: skip


def _im2col(self: Meta, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Meta:
    counts = [
        (self.shape[-2 + i] + 2 * padding[i] - dilation[i] * (kernel_size[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    patch = kernel_size[0] * kernel_size[1]
    shape = (*self.shape[:-3], self.shape[-3] * patch, counts[0] * counts[1])
    return fresh(self, shape)


_SHUFFLES = Constraint(
    "C1", "the square of the factor divides the channels",
    lambda self, upscale_factor: self.ndim < 3 or upscale_factor < 1 or self.shape[-3] % upscale_factor**2 == 0,
    Refused("pixel_shuffle", (f32(1, 3, 2, 2), 2)),
)  # fmt: skip


_UNSHUFFLES = Constraint(
    "C1", "the factor divides height and width", lambda self, downscale_factor: (
        self.ndim < 2 or downscale_factor < 1 or all(size % downscale_factor == 0 for size in self.shape[-2:])
    ),
    Refused("pixel_unshuffle", (f32(1, 1, 3, 3), 2)),
)  # fmt: skip


_VOLUME = Meta((1, 4, 2, 2, 2), (32, 1, 16, 8, 4), torch.float32)


def _no_channels_last_volume(name: str) -> Constraint:
    return Constraint(
        "C2",
        "five dimensions are not laid out as channels_last_3d",
        lambda self: 0 in self.shape or suggest_format(self) is not torch.channels_last_3d,
        Refused(name, (_VOLUME, 1)),
    )


def _pixel_shuffle(self: Meta, upscale_factor: int) -> Meta:
    *batch, channels, height, width = self.shape
    return formatted(self, (*batch, channels // upscale_factor**2, height * upscale_factor, width * upscale_factor))


def _pixel_unshuffle(self: Meta, downscale_factor: int) -> Meta:
    if 0 in self.shape:
        return empty_like(self)  # eager clones an empty image, and leaves its shape as it is
    *batch, channels, height, width = self.shape
    factor = downscale_factor
    return formatted(self, (*batch, channels * factor * factor, height // factor, width // factor))


def _grid_sampler(input: Meta, grid: Meta) -> Meta:
    if input.shape[0] != grid.shape[0] or grid.shape[-1] != input.ndim - 2:
        raise TypeRuleError(f"grid_sampler of {list(input.shape)} at {list(grid.shape)}")
    return fresh(input, (*input.shape[:2], *grid.shape[1:-1]))


def _leaves_room(self: Meta, kernel_size: Sizes, output_size: Sizes) -> bool:
    most = 0 if len(output_size) == 2 else -1  # for volumes, the last window may not end with the image
    return all(
        size - kernel - output + 1 + most >= 0
        for size, kernel, output in zip(self.shape[-len(output_size) :], kernel_size, output_size, strict=False)
    )


_ROOM = Constraint(
    "C1", "windows fit into the image, each at a place of its own", _leaves_room,
    Refused("fractional_max_pool2d", (f32(1, 1, 4, 4), [2, 2], [4, 4], f32(1, 1, 2))),
)  # fmt: skip


def _largest(*values: Any) -> int:
    """The greatest int among ints and lists of them; 1 where there is none."""
    return max([1, *(n for value in values for n in (value if isinstance(value, (list, tuple)) else (value,)))])


def _windowed(self: Meta, rank: int, extent: int) -> Meta:
    """One image of one channel in which a window of this extent fits; empty dimensions stay so."""
    lead = max(self.ndim - rank, 0)
    extent = max(extent, 1)
    return shaped(self, [0 if n == 0 else 1 if dim < lead else extent for dim, n in enumerate(self.shape)])


def _of_window(rank: int) -> Question:
    def of(self: Meta, kernel_size: Sizes, dilation: Sizes = ()) -> dict[str, Any]:
        return {"self": _windowed(self, rank, _largest(kernel_size) * _largest(dilation))}

    return Question(of=of)


def _of_fractions(self: Meta, kernel_size: Sizes, output_size: Sizes, random_samples: Meta) -> dict[str, Any]:
    """The samples have one place in each dimension, for every channel."""
    image = _windowed(self, random_samples.shape[-1], _largest(kernel_size) + _largest(output_size))
    lead = (1, *image.shape)[-2 - random_samples.shape[-1] : -random_samples.shape[-1]]
    return {"self": image, "random_samples": shaped(random_samples, (*lead, len(output_size)))}


_UPSAMPLE = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""
_KEEP_THE_FORMAT = (
    "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
)  # fmt: skip
"""In the backward, too; the backwards of others are row-major."""
_WINDOW, _WINDOW_3D = _of_window(2), _of_window(3)
_EMPTIES = Question(empties=True)
_OUTPUTS = Question(of=lambda self, output_size: {
    "self": ones(self, empties=True), "output_size": [min(n, 1) for n in output_size]
})  # fmt: skip
_PADDED = Question(of=lambda self, padding: {
    "self": _windowed(self, len(padding) // 2, 2 * max((abs(n) for n in padding), default=0) + 1)
})  # fmt: skip

TABLE.rows({
    "max_pool2d_with_indices": Rule(_max_pool(2), (), _WINDOW),
    "max_pool3d_with_indices": Rule(_max_pool(3), (), _WINDOW_3D),
    "avg_pool2d": Rule(_avg_pool(2, formatted), (), _WINDOW),
    "avg_pool3d": Rule(_avg_pool(3, fresh), (_HOLDS_A_WINDOW,), _WINDOW_3D),
    """max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward
    adaptive_max_pool2d_backward""": lambda self: suggested(self),
    "avg_pool3d_backward adaptive_max_pool3d_backward": lambda self: fresh(self),
    "_adaptive_avg_pool2d_backward": Rule(lambda self: suggested(self), (), _EMPTIES),
    "_adaptive_avg_pool3d_backward": Rule(lambda self: fresh(self), (), _EMPTIES),
    "_adaptive_avg_pool2d _adaptive_avg_pool3d": Rule(_adaptive, (), _OUTPUTS),
    "adaptive_max_pool2d adaptive_max_pool3d": Rule(lambda self, output_size: (
        _adaptive(self, output_size), _adaptive(self, output_size, torch.int64)
    ), (), _OUTPUTS),
    _UPSAMPLE: Rule(lambda self, output_size: formatted(self, (*self.shape[:2], *output_size)), (), _OUTPUTS),
    " ".join(f"{name}_backward" for name in _UPSAMPLE.split() if name not in _KEEP_THE_FORMAT):
        lambda grad_output, input_size: fresh(grad_output, input_size),
    " ".join(f"{name}_backward" for name in _KEEP_THE_FORMAT):
        lambda grad_output, input_size: formatted(grad_output, tuple(input_size)),
    # Whether the value fits the dtype, where there is a border.
    "constant_pad_nd": Rule(_constant_pad, (_PAIRS, _CUTS), Question(of=lambda self, pad: {
        "self": ones(self), "pad": [1, 1] if self.shape and any(n > 0 for n in pad) else []
    })),
    "reflection_pad1d reflection_pad2d reflection_pad3d": Rule(
        lambda self, padding: formatted(self, _padded(self, padding)), (_REFLECTS,), _PADDED
    ),
    "replication_pad1d replication_pad2d replication_pad3d": Rule(
        lambda self, padding: formatted(self, _padded(self, padding)), (), _PADDED
    ),
    """reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward
    replication_pad2d_backward replication_pad3d_backward""": lambda self: suggested(self),
    "im2col": Rule(_im2col, (_PATCH,), _WINDOW),
    "col2im": lambda self, output_size, kernel_size: fresh(
        self, (*self.shape[:-2], self.shape[-2] // (kernel_size[0] * kernel_size[1]), *output_size)
    ),
    "pixel_shuffle": Rule(_pixel_shuffle, (_SHUFFLES, _no_channels_last_volume("pixel_shuffle")), Question(
        of=lambda self, upscale_factor: {  # one pixel of so many channels
            "self": shaped(self, [1 if dim != self.ndim - 3 else max(upscale_factor**2, 1) for dim in range(self.ndim)])
        }
    )),
    "pixel_unshuffle": Rule(_pixel_unshuffle, (_UNSHUFFLES, _no_channels_last_volume("pixel_unshuffle")), Question(
        of=lambda self, downscale_factor: {"self": _windowed(self, 2, downscale_factor)}
    )),
    # The last dimension of the grid is the place in an image.
    "grid_sampler_2d grid_sampler_3d": Rule(_grid_sampler, (), Question(of=lambda input, grid: {
        "input": ones(input, True), "grid": shaped(grid, (*ones(grid, True).shape[:-1], *grid.shape[-1:]))
    })),
    "grid_sampler_2d_backward grid_sampler_3d_backward": lambda input, grid, output_mask: (
        fresh(input) if output_mask[0] else None, fresh(grid)
    ),
    "max_unpool2d": lambda self, output_size: formatted(self, (*self.shape[:-2], *output_size)),
    "max_unpool3d": lambda self, output_size: fresh(self, (*self.shape[:-3], *output_size)),
    "fractional_max_pool2d fractional_max_pool3d": Rule(lambda self, output_size: (
        values := fresh(self, (*self.shape[: self.ndim - len(output_size)], *output_size)),
        fresh(values, dtype=torch.int64),
    ), (_ROOM,), Question(of=_of_fractions)),
    "fractional_max_pool2d_backward fractional_max_pool3d_backward": lambda self: fresh(self),
    "affine_grid_generator": lambda theta, size: fresh(theta, (size[0], *size[2:], len(size) - 2)),
})  # fmt: skip
