"""Rules of activation functions' backwards, of GLU and PReLU, and of dropout's backward."""

from __future__ import annotations

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question
from absint.meta import Meta
from absint.rules.pointwise import pointwise
from absint.rules.results import empty_like, fresh, resized, suggested
from absint.rules.sizes import wrap_dim
from absint.rules.table import RuleTable

__all__ = ["TABLE"]

TABLE = RuleTable()


def _glu(self: Meta, dim: int) -> Meta:
    dim = wrap_dim(dim, self.ndim)
    if self.shape[dim] % 2 != 0:
        raise TypeRuleError(f"Halving dimension must be even, but dimension {dim} is size {self.shape[dim]}")
    return pointwise((Meta(resized(self, dim, self.shape[dim] // 2), self.stride, self.dtype, self.device),))


def _log_sigmoid(self: Meta) -> tuple[Meta, Meta]:
    result = fresh(self)
    return result, result if self.device.type == "cpu" else fresh(self, (0,))


def _weight_norm(v: Meta, g: Meta) -> tuple[Meta, Meta]:
    """The norms of half precision are float32; kernels of CUDA keep those of bfloat16."""
    halves = (torch.float16,) if g.device.type == "cuda" else (torch.float16, torch.bfloat16)
    return suggested(v), fresh(g, dtype=torch.float32 if g.dtype in halves else None)


TABLE.rows({
    # The operands of TensorIterator are (grad_output, self) in the order given; scalars follow.
    """gelu_backward silu_backward mish_backward hardswish_backward hardsigmoid_backward hardshrink_backward
    softshrink_backward softplus_backward hardtanh_backward tanh_backward sigmoid_backward logit_backward
    """: lambda grad_output, self, /: pointwise((grad_output, self)),
    "threshold_backward leaky_relu_backward": lambda grad_output, self: pointwise((self, grad_output)),
    "elu_backward": lambda grad_output, self_or_result: pointwise((grad_output, self_or_result)),
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid_backward": lambda grad_output: empty_like(grad_output),
    "glu": _glu,
    "glu_backward": lambda self: fresh(self),
    "_prelu_kernel": lambda self, weight: pointwise((self, weight)),
    "_prelu_kernel_backward": lambda grad_output, self, weight: (pointwise((self, weight, grad_output)),) * 2,
    "native_dropout_backward": lambda grad_output, mask, scale: pointwise((pointwise((grad_output, mask)), scale)),
    "_weight_norm_interface": _weight_norm,
    "_weight_norm_interface_backward": lambda saved_v, saved_g: (fresh(saved_v), fresh(saved_g)),
})  # fmt: skip
TABLE.ask("log_sigmoid_forward _prelu_kernel _weight_norm_interface")
TABLE.ask("glu", Question(size=2))
