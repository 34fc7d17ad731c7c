"""Rules of activation functions' backwards, of GLU and PReLU, and of dropout's backward."""

from __future__ import annotations

from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question
from absint.meta import Meta, contiguous
from absint.rules.movement import like
from absint.rules.pointwise import pointwise
from absint.rules.sizes import wrap_dim
from absint.rules.table import RuleTable
from absint.strides import stride_of_format, suggest_format

__all__ = ["TABLE"]

TABLE = RuleTable()


# The operands of TensorIterator are (grad_output, self) in the order given; scalars follow.
@TABLE.rule(
    """gelu_backward silu_backward mish_backward hardswish_backward hardsigmoid_backward
    hardshrink_backward softshrink_backward softplus_backward hardtanh_backward
    tanh_backward sigmoid_backward logit_backward"""
)
def _grad_then_self(grad_output: Meta, self: Meta, *_: Any, **__: Any) -> Meta:
    return pointwise((grad_output, self))


@TABLE.rule("threshold_backward leaky_relu_backward")
def _self_then_grad(grad_output: Meta, self: Meta, *_: Any) -> Meta:
    return pointwise((self, grad_output))


@TABLE.rule("elu_backward")
def _elu_backward(
    grad_output: Meta, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Meta
) -> Meta:
    return pointwise((grad_output, self_or_result))


@TABLE.rule("log_sigmoid_forward")
def _log_sigmoid_forward(self: Meta) -> tuple[Meta, Meta]:
    result = contiguous(self.shape, self.dtype, self.device)
    return result, result if self.device.type == "cpu" else contiguous((0,), self.dtype, self.device)


@TABLE.rule("log_sigmoid_backward")
def _log_sigmoid_backward(grad_output: Meta, self: Meta, buffer: Meta) -> Meta:
    return like(grad_output, None)


@TABLE.rule("glu")
def _glu(self: Meta, dim: int = -1) -> Meta:
    dim = wrap_dim(dim, self.ndim)
    if self.shape[dim] % 2 != 0:
        raise TypeRuleError(f"Halving dimension must be even, but dimension {dim} is size {self.shape[dim]}")
    half = (*self.shape[:dim], self.shape[dim] // 2, *self.shape[dim + 1 :])
    return pointwise((Meta(half, self.stride, self.dtype, self.device),))


@TABLE.rule("glu_backward")
def _glu_backward(grad_output: Meta, self: Meta, dim: int) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("_prelu_kernel")
def _prelu_kernel(self: Meta, weight: Meta) -> Meta:
    return pointwise((self, weight))


@TABLE.rule("_prelu_kernel_backward")
def _prelu_kernel_backward(grad_output: Meta, self: Meta, weight: Meta) -> tuple[Meta, Meta]:
    result = pointwise((self, weight, grad_output))
    return result, result


@TABLE.rule("native_dropout_backward")
def _native_dropout_backward(grad_output: Meta, mask: Meta, scale: float) -> Meta:
    return pointwise((pointwise((grad_output, mask)), scale))


@TABLE.rule("_weight_norm_interface")
def _weight_norm(v: Meta, g: Meta, dim: int = 0) -> tuple[Meta, Meta]:
    """The norms of half precision are float32; kernels of CUDA keep those of bfloat16."""
    halves = (torch.float16,) if g.device.type == "cuda" else (torch.float16, torch.bfloat16)
    norms = contiguous(g.shape, torch.float32 if g.dtype in halves else g.dtype, g.device)
    stride = stride_of_format(v.shape, suggest_format(v))
    return Meta(v.shape, stride, v.dtype, v.device), norms


@TABLE.rule("_weight_norm_interface_backward")
def _weight_norm_backward(grad_w: Meta, saved_v: Meta, saved_g: Meta, saved_norms: Meta, dim: int) -> tuple[Meta, Meta]:
    grad_v = contiguous(saved_v.shape, saved_v.dtype, saved_v.device)
    return grad_v, contiguous(saved_g.shape, saved_g.dtype, saved_g.device)


TABLE.ask("log_sigmoid_forward _prelu_kernel _weight_norm_interface")
TABLE.ask("glu", question=Question(size=2))
