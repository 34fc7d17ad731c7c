"""Products of tensors of more than two dimensions, where the C++ of torch takes sizes as numbers (before 2.13).

w: matrix    x @ w           x as a matrix, mm, and back        where gradients of w, or the strides of x, allow it
             w @ x           (x.mT @ w.mT).mT, copied           where gradients of w ask for it
v: vector    x @ v           x as a matrix, mv, and back
otherwise    a @ b           bmm of both, broadcast to the same leading sizes

Bits and strides are those of ATen's own `matmul`, which folds in the same cases (its LinearAlgebra.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from absint.meta import contiguous
from absint.rules.pointwise import broadcast
from absint.symbolic import ShapeEnv, is_symbolic, make_size


def matmul(left: Any, right: Any) -> Any:
    """`left @ right`."""
    tensors = [side for side in (left, right) if isinstance(side, torch.Tensor)]
    is_open = any(is_symbolic(size) for side in tensors for size in side.shape)
    if len(tensors) < 2 or not is_open or max(side.dim() for side in tensors) < 3 or 0 in (left.dim(), right.dim()):
        return torch.matmul(left, right)
    return product(left, right)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """`torch.nn.functional.linear`.

    Its C++ adds a bias to the product in place, but to a subclass of Tensor out of place: that shows where the sum has
    another shape or dtype.
    """
    made = _linear(input, weight, bias)
    if bias is None or input.dim() == 2 or (bias.dtype is input.dtype and bias.shape == weight.shape[:1]):
        return made
    summed = matmul(input, weight.t())
    is_same = made.shape == summed.shape and made.dtype is summed.dtype
    return made if is_same else summed.add_(bias)


def _linear(input: Any, weight: Any, bias: Any) -> Any:
    if takes_symbols():
        return torch.nn.functional.linear(input, weight, bias)
    if bias is None and weight.dim() == 2:
        return matmul(input, weight.t())
    if weight.dim() != 2 or input.dim() < 3 or not any(is_symbolic(size) for size in input.shape):
        return torch.nn.functional.linear(input, weight, bias)
    if not input.is_contiguous():
        return product(input, weight.t()) + bias
    leading = tuple(input.shape[:-1])
    flat = input.view(math.prod(leading), input.shape[-1])
    return torch.nn.functional.linear(flat, weight, bias).view(*leading, weight.shape[0])


def product(left: Any, right: Any) -> Any:
    """`left @ right`, one of which has more than two dimensions and the other at least one."""
    if right.dim() <= 2 and _is_folded(left, right, turned=False):
        return _folded(left, right)
    if left.dim() <= 2 and _is_folded(right.mT, _turned(left), turned=True):
        made = _folded(right.mT, _turned(left))
        return made.mT.contiguous() if left.dim() == 2 else made
    return _batched(left, right)


def _turned(side: Any) -> Any:
    return side.t() if side.dim() == 2 else side


def _is_folded(large: Any, small: Any, *, turned: bool) -> bool:
    """Whether ATen multiplies `large` as one matrix."""
    if small.requires_grad:
        return True
    if turned and small.dim() == 2:
        return False
    shape, stride = large.shape, large.stride()
    return bool(math.prod(shape) == 0) or all(
        bool(stride[dim] == stride[dim + 1] * shape[dim + 1]) for dim in range(large.dim() - 2)
    )


def _folded(large: Any, small: Any) -> Any:
    leading, inner = tuple(large.shape[:-1]), large.shape[-1]
    flat = large.reshape(math.prod(leading), inner)
    if small.dim() == 1:
        return flat.mv(small).view(leading)
    return flat.mm(small).view(*leading, small.shape[1])


def _batched(left: Any, right: Any) -> Any:
    first = left.unsqueeze(0) if left.dim() == 1 else left
    second = right.unsqueeze(1) if right.dim() == 1 else right
    leading = broadcast(tuple(first.shape[:-2]), tuple(second.shape[:-2]))
    count = math.prod(leading)
    sides = [side.expand(*leading, *side.shape[-2:]).reshape(count, *side.shape[-2:]) for side in (first, second)]
    made = torch.bmm(*sides).view(*leading, first.shape[-2], second.shape[-1])
    if left.dim() == 1:
        return made.squeeze(-2)
    return made.squeeze(-1) if right.dim() == 1 else made


@cache
def takes_symbols() -> bool:
    """Whether the C++ of this torch multiplies tensors of symbolic sizes: it is tried on one product."""
    from absint.mode import AbstractMode  # which takes its forms from here
    from absint.tensor import AbstractTensor

    env = ShapeEnv()
    rows = make_size(env, env.create("n", 5))
    with AbstractMode():
        left, right = (AbstractTensor(contiguous(shape, torch.float32)) for shape in ((rows, 3, 4), (4, 2)))
        try:
            torch.matmul(left, right)
        except RuntimeError as error:
            if "symbolic sizes" not in str(error):
                raise
            return False
    return not env.relations


LINEAR_FORMS: dict[str, Callable[..., Any]] = {"torch.nn.functional.linear": linear}
PRODUCT_FORMS: dict[str, Callable[..., Any]] = dict.fromkeys(
    ("torch.matmul", "operator.matmul", "torch.Tensor.matmul", "torch.Tensor.__matmul__"), matmul
)
"""Needed unless `takes_symbols`."""
