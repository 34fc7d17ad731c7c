"""Rules of losses and their backwards. `reduction`: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

from absint.errors import TypeRuleError
from absint.meta import Meta, contiguous
from absint.rules.pointwise import pointwise
from absint.rules.table import RuleTable

__all__ = ["TABLE"]

TABLE = RuleTable()
_NONE = 0


def _scalar(like: Meta) -> Meta:
    return contiguous((), like.dtype, like.device)


@TABLE.rule("nll_loss_forward")
def _nll_forward(self: Meta, target: Meta, weight: Meta | None, reduction: int, ignore_index: int) -> tuple[Meta, Meta]:
    batch = self.shape[:-1]
    if target.shape != batch:
        raise TypeRuleError(f"size mismatch (got input: {list(self.shape)}, target: {list(target.shape)})")
    unreduced = reduction == _NONE and self.ndim == 2
    output = contiguous(batch, self.dtype, self.device) if unreduced else _scalar(self)
    return output, _scalar(self)


@TABLE.rule("nll_loss2d_forward")
def _nll2d_forward(
    self: Meta, target: Meta, weight: Meta | None, reduction: int, ignore_index: int
) -> tuple[Meta, Meta]:
    output = contiguous(target.shape, self.dtype, self.device) if reduction == _NONE else _scalar(self)
    return output, _scalar(self)


@TABLE.rule("nll_loss_backward nll_loss2d_backward")
def _nll_backward(grad_output: Meta, self: Meta, *_: Any, **__: Any) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("mse_loss")
def _mse(self: Meta, target: Meta, reduction: int = 1) -> Meta:
    result = pointwise((self, target))
    return result if reduction == _NONE else _scalar(result)


@TABLE.rule("smooth_l1_loss huber_loss")
def _smooth_l1(self: Meta, target: Meta, reduction: int = 1, beta: float = 1.0) -> Meta:
    return _mse(self, target, reduction)


@TABLE.rule("mse_loss_backward")
def _mse_backward(grad_output: Meta, self: Meta, target: Meta, *_: Any) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("smooth_l1_loss_backward huber_loss_backward")
def _smooth_l1_backward(grad_output: Meta, self: Meta, target: Meta, *_: Any) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("binary_cross_entropy")
def _bce(self: Meta, target: Meta, weight: Meta | None = None, reduction: int = 1) -> Meta:
    result = contiguous(self.shape, self.dtype, self.device)
    return result if reduction == _NONE else _scalar(result)


@TABLE.rule("binary_cross_entropy_backward")
def _bce_backward(grad_output: Meta, self: Meta, target: Meta, *_: Any, **__: Any) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("binary_cross_entropy_with_logits")
def _bce_logits(
    self: Meta,
    target: Meta,
    weight: Meta | None = None,
    pos_weight: Meta | None = None,
    reduction: int = 1,
) -> Meta:
    operands = [m for m in (self, target, weight, pos_weight) if m is not None]
    result = pointwise(operands)
    return result if reduction == _NONE else _scalar(result)


@TABLE.rule("soft_margin_loss")
def _soft_margin(self: Meta, target: Meta, reduction: int = 1) -> Meta:
    return _mse(self, target, reduction)


@TABLE.rule("soft_margin_loss_backward")
def _soft_margin_backward(grad_output: Meta, self: Meta, target: Meta, reduction: int) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)
