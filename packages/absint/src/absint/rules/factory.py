"""Rules of factories, tensors from sizes, `*_like` and `new_*`, and of random sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, ones
from absint.meta import CPU, Meta, contiguous
from absint.promote import number_dtype
from absint.rules.pointwise import broadcast, pointwise
from absint.rules.shapes import empty_like, fresh, numbered, refuse_negative
from absint.rules.table import Constraint, Refused, Rule, RuleTable, f32
from absint.strides import contiguous_stride, stride_of_format

TABLE = RuleTable()
Sizes = Sequence[int]
DType = torch.dtype | None


def _device(device: Any) -> torch.device:
    """The device a factory uses: None means the CPU, an accelerator without index its first."""
    return CPU if device is None else numbered(torch.device(device))


def _made(size: Sizes, dtype: DType, device: Any) -> Meta:
    refuse_negative(size)
    return contiguous(size, dtype or torch.get_default_dtype(), _device(device))


def _restrided(made: Meta, stride: Sizes) -> Meta:
    return Meta(made.shape, tuple(stride), made.dtype, made.device)


_PERMUTES = Constraint(
    "C1", "the layout names each dimension once",
    lambda size, physical_layout: sorted(physical_layout) == list(range(len(size))),
    Refused("empty_permuted", ([2, 3], [0, 0])),
)  # fmt: skip


def _empty_permuted(size: Sizes, physical_layout: Sizes, dtype: DType, device: Any) -> Meta:
    steps = dict(zip(physical_layout, contiguous_stride([size[dim] for dim in physical_layout]), strict=True))
    return _restrided(_made(size, dtype, device), [steps[dim] for dim in range(len(size))])


def _arange(end: Any, dtype: DType, device: Any, start: Any = 0, step: Any = 1) -> Meta:
    if not (step > 0 or step < 0):  # nan is neither
        raise TypeRuleError("step must be nonzero")
    if any(isinstance(bound, float) and not math.isfinite(bound) for bound in (start, end)):
        raise TypeRuleError(f"unsupported range: {start} -> {end}")
    if (step > 0 and start > end) or (step < 0 and start < end):
        raise TypeRuleError("upper bound and lower bound inconsistent with step sign")
    if dtype is None:
        whole = all(not isinstance(bound, float) for bound in (start, end, step))
        dtype = torch.int64 if whole else torch.get_default_dtype()
    start, end, step = (_as_whole(bound, dtype) for bound in (start, end, step))
    if type(step) is int and step == 0:
        raise TypeRuleError("step must be nonzero")
    if any(isinstance(bound, float) for bound in (start, end, step)):
        count = math.ceil((end - start) / step)
    else:
        count = (end - start + step - (1 if step > 0 else -1)) // step
    return _made((count,), dtype, device)


def _as_whole(bound: Any, dtype: DType) -> Any:
    """A float as an integer where that counts the same: of an integer's value, or cut off, as int64 has it."""
    return int(bound) if isinstance(bound, float) and (dtype is torch.int64 or bound.is_integer()) else bound


def _spaced(start: Any, end: Any, steps: int, dtype: DType, device: Any) -> Meta:
    if dtype is None and any(
        bound.dtype.is_complex if isinstance(bound, Meta) else isinstance(bound, complex) for bound in (start, end)
    ):
        dtype = torch.get_default_dtype().to_complex()
    return _made((steps,), dtype, device)


def _triangle_count(row: int, col: int, offset: int) -> int:
    """Elements on or below the diagonal `offset` of a row x col matrix."""
    return sum(max(0, min(col, line + offset + 1)) for line in range(row))


def _new(self: Meta, size: Sizes, dtype: DType, device: Any) -> Meta:
    return _made(size, dtype or self.dtype, self.device if device is None else device)


TABLE.rows({
    "zeros ones rand randn rand.generator randn.generator _efficientzerotensor normal.float_float": _made,
    "randint randint.generator randint.low randint.low_generator": lambda size, dtype, device: (
        _made(size, dtype or torch.int64, device)
    ),
    "randperm randperm.generator": lambda n, dtype, device: _made((n,), dtype or torch.int64, device),
    "empty.memory_format": lambda size, dtype, device, memory_format: (
        _restrided(_made(size, dtype, device), stride_of_format(tuple(size), memory_format))
    ),
    "empty_strided": lambda size, stride, dtype, device: (
        Meta(tuple(size), tuple(stride), dtype or torch.get_default_dtype(), _device(device))
    ),
    "empty_permuted": Rule(_empty_permuted, (_PERMUTES,)),
    "full": lambda size, fill_value, dtype, device: _made(size, dtype or number_dtype(fill_value), device),
    "scalar_tensor": lambda dtype, device: _made((), dtype, device),
    "arange arange.start arange.start_step": _arange,
    "eye": lambda n, dtype, device: _made((n, n), dtype, device),
    "eye.m": lambda n, m, dtype, device: _made((n, m), dtype, device),
    "tril_indices": lambda row, col, offset, dtype, device: (
        _made((2, _triangle_count(row, col, offset)), dtype or torch.int64, device)
    ),
    "triu_indices": lambda row, col, offset, dtype, device: (
        _made((2, row * col - _triangle_count(row, col, offset - 1)), dtype or torch.int64, device)
    ),
    "zeros_like ones_like empty_like rand_like randn_like full_like randint_like randint_like.low_dtype": empty_like,
    "new_empty new_zeros new_ones new_full": _new,
    "new_empty_strided": lambda self, size, stride, dtype, device: (
        _restrided(_new(self, size, dtype, device), stride)
    ),
    "zero fill.Scalar fill.Tensor": lambda self: empty_like(self),
})  # fmt: skip


_SIZE = 2  # of one element, a number that overflows in half precision is taken as infinity, and is refused of two
_OF_SIZE = Question(of=lambda size: {"size": [_SIZE] * len(size)})
TABLE.ask("""
    rand randn rand.generator randn.generator normal.float_float randint randint.generator randint.low
    randint.low_generator full
""", _OF_SIZE)  # fmt: skip
TABLE.ask("new_full", Question(of=lambda self, size: {"self": ones(self), "size": [_SIZE] * len(size)}))
TABLE.ask("scalar_tensor")
TABLE.ask("rand_like randn_like full_like randint_like fill.Scalar fill.Tensor", Question(size=_SIZE))
TABLE.ask("arange arange.start arange.start_step", Question(of=lambda end: {"start": 0, "end": 1, "step": 1}))
TABLE.rows({
    """linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor
    logspace logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor""": _spaced,
}, Question(of=lambda steps: {"steps": min(steps, 2)}))  # fmt: skip
TABLE.ask("randperm randperm.generator", Question(of=lambda n: {"n": min(n, 1)}))
TABLE.ask("tril_indices triu_indices", Question(of=lambda row, col: {"row": min(row, 1), "col": min(col, 1)}))


# Random sampling from tensors.

_DRAWN = Constraint(
    "C1", "some are drawn, and no more than there are without replacement", lambda self, num_samples, replacement: (
        num_samples > 0 and (replacement or all(num_samples <= size for size in self.shape[-1:]))
    ),
    Refused("multinomial", (f32(3), 4)),
)  # fmt: skip


_NOISE = Constraint(
    "C1", "noise has the shape of self", lambda self, noise: self.shape == noise.shape,
    Refused("rrelu_with_noise", (f32(3), f32(4))),
)  # fmt: skip


def _like_first(*operands: Meta) -> Meta:
    """Row-major and of the shape of the first operand; else resized, and laid out as the operands are."""
    first, *others = operands
    shape = first.shape
    for other in others:
        shape = broadcast(shape, other.shape)
    return fresh(first, shape) if shape == first.shape else pointwise(operands, first.dtype)


_FILLS = "uniform normal_functional exponential log_normal cauchy geometric random"


TABLE.rows({
    "bernoulli bernoulli.p bernoulli.Tensor": lambda self: fresh(self),
    "rrelu_with_noise": Rule(lambda self: fresh(self), (_NOISE,)),
    f"{_FILLS} random.from random.to": lambda self: empty_like(self),
    "_standard_gamma poisson _sample_dirichlet": lambda self: fresh(self),
    "binomial": lambda count, prob: _like_first(count, prob),
    "_standard_gamma_grad": lambda self, output: _like_first(self, output),
    "_dirichlet_grad": lambda x, alpha, total: _like_first(x, alpha, total),
    "multinomial": Rule(lambda self, num_samples: fresh(self, (*self.shape[:-1], num_samples), torch.int64), (_DRAWN,)),
    "native_dropout": lambda input: (
        pointwise((input, mask := empty_like(input, dtype=torch.bool)), input.dtype), mask
    ),
    "normal.Tensor_float": lambda mean: fresh(mean),
    "normal.float_Tensor": lambda std: fresh(std),
    "normal.Tensor_Tensor": lambda mean, std: fresh(mean, broadcast(mean.shape, std.shape)),
    "rrelu_with_noise_functional": Rule(lambda self, noise: (empty_like(self), empty_like(noise)), (_NOISE,)),
    "rrelu_with_noise_backward": lambda grad_output, self, noise, training: (
        pointwise((noise if training else self, grad_output))
    ),
})  # fmt: skip
TABLE.ask(f"bernoulli bernoulli.Tensor {_FILLS} random.from random.to")
TABLE.ask("_standard_gamma poisson _sample_dirichlet _standard_gamma_grad _dirichlet_grad")
TABLE.ask("rrelu_with_noise rrelu_with_noise_functional")
TABLE.ask("normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor")
TABLE.ask("multinomial", Question(of=lambda self: {"self": ones(self), "num_samples": 1}, drops_sizes=True))
