"""Rules of losses and their backwards. `reduction`: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absint.errors import DataDependentError, TypeRuleError
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


@TABLE.rule("multi_margin_loss")
def _multi_margin(
    self: Meta,
    target: Meta,
    p: Any = 1,
    margin: Any = 1,
    weight: Meta | None = None,
    reduction: int = 1,
) -> Meta:
    return contiguous(target.shape, self.dtype, self.device) if reduction == _NONE else _scalar(self)


@TABLE.rule("multi_margin_loss_backward multilabel_margin_loss_backward")
def _margin_backward(grad_output: Meta, self: Meta, *_: Any, **__: Any) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("multilabel_margin_loss_forward")
def _multilabel_margin(self: Meta, target: Meta, reduction: int) -> tuple[Meta, Meta]:
    is_target = contiguous(target.shape, self.dtype, self.device)
    if reduction != _NONE or target.ndim <= 1:
        return _scalar(self), is_target
    return contiguous(self.shape[:1], self.dtype, self.device), is_target


@TABLE.rule("_ctc_loss")
def _ctc(
    log_probs: Meta,
    targets: Meta,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Meta, Meta]:
    time, batch, _ = log_probs.shape
    longest = max(target_lengths, default=0)
    alpha = (batch, time, 2 * longest + 1)
    loss = contiguous((batch,), log_probs.dtype, log_probs.device)
    return loss, contiguous(alpha, log_probs.dtype, log_probs.device)


@TABLE.rule("_ctc_loss.Tensor")
def _ctc_of_tensors(log_probs: Meta, *_: Any, **__: Any) -> tuple[Meta, Meta]:
    raise DataDependentError("the work space of ctc_loss is as large as the longest target length says")


@TABLE.rule("_ctc_loss_backward _ctc_loss_backward.Tensor")
def _ctc_backward(grad: Meta, log_probs: Meta, *_: Any, **__: Any) -> Meta:
    return contiguous(log_probs.shape, log_probs.dtype, log_probs.device)
