"""Rules of losses and their backwards. `reduction`: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absint.errors import DataDependentError, TypeRuleError
from absint.kernels import Question
from absint.meta import Meta, contiguous, numel
from absint.rules.constraint import Constraint, Refused, f32, i64
from absint.rules.index_constraints import broadcasts_to
from absint.rules.pointwise import pointwise
from absint.rules.table import RuleTable

__all__ = ["TABLE"]

TABLE = RuleTable()
_NONE = 0


def _scalar(like: Meta) -> Meta:
    return contiguous((), like.dtype, like.device)


def _weighs_classes(
    self: Meta, target: Meta, weight: Meta | None, reduction: int = 1, ignore_index: int = -100
) -> bool:
    classes = self.shape[-1] if self.ndim < 3 else self.shape[1]
    return weight is None or (weight.ndim == 1 and weight.shape[0] == classes)


_WEIGHED = Constraint(
    "C1", "weight has an element for each class", _weighs_classes,
    Refused("nll_loss_forward", (f32(2, 5), i64(2), f32(1), 1, -100)),
)  # fmt: skip
_WEIGHED_2D = Constraint(
    "C1", "weight has an element for each class", _weighs_classes,
    Refused("nll_loss2d_forward", (f32(2, 5, 3, 3), i64(2, 3, 3), f32(1), 1, -100)),
)  # fmt: skip
_PIXELS = Constraint(
    "C2", "target has an element for each pixel", lambda self, target, *_, **__: (
        target.shape == (self.shape[0], *self.shape[2:])
    ),
    Refused("nll_loss2d_forward", (f32(2, 5, 3, 3), i64(2, 3, 4), None, 1, -100)),
)  # fmt: skip


@TABLE.rule("nll_loss_forward", requires=(_WEIGHED,))
def _nll_forward(self: Meta, target: Meta, weight: Meta | None, reduction: int, ignore_index: int) -> tuple[Meta, Meta]:
    batch = self.shape[:-1]
    if target.shape != batch:
        raise TypeRuleError(f"size mismatch (got input: {list(self.shape)}, target: {list(target.shape)})")
    unreduced = reduction == _NONE and self.ndim == 2
    output = contiguous(batch, self.dtype, self.device) if unreduced else _scalar(self)
    return output, _scalar(self)


@TABLE.rule("nll_loss2d_forward", requires=(_WEIGHED_2D, _PIXELS))
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


def _weight_fits(self: Meta, target: Meta, weight: Meta | None = None, reduction: int = 1) -> bool:
    return weight is None or broadcasts_to(weight.shape, self.shape)


_SAME_SHAPE = Constraint(
    "C1", "self and target have the same shape", lambda self, target, *_, **__: self.shape == target.shape,
    Refused("binary_cross_entropy", (f32(3), f32(4))),
)  # fmt: skip
_WEIGHT_FITS = Constraint(
    "C2", "weight broadcasts to self", _weight_fits, Refused("binary_cross_entropy", (f32(3), f32(3), f32(2)))
)


@TABLE.rule("binary_cross_entropy", requires=(_SAME_SHAPE, _WEIGHT_FITS))
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


_SOFT_MARGIN = Constraint(
    "C1", "target broadcasts to self", lambda self, target, *_, **__: broadcasts_to(target.shape, self.shape),
    Refused("soft_margin_loss", (f32(1), f32(3))),
)  # fmt: skip


@TABLE.rule("soft_margin_loss", requires=(_SOFT_MARGIN,))
def _soft_margin(self: Meta, target: Meta, reduction: int = 1) -> Meta:
    return _mse(self, target, reduction)


@TABLE.rule("soft_margin_loss_backward")
def _soft_margin_backward(grad_output: Meta, self: Meta, target: Meta, reduction: int) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


def _has_classes(self: Meta, *_: Any, **__: Any) -> bool:
    return self.ndim <= 2 and 0 not in self.shape[-1:]


def _one_target_each(self: Meta, target: Meta, *_: Any, **__: Any) -> bool:
    batch = self.shape[0] if self.ndim == 2 else 1
    return target.ndim <= 1 and numel(target.shape) == batch


def _weighs_margins(
    self: Meta, target: Meta, p: Any = 1, margin: Any = 1, weight: Meta | None = None, reduction: int = 1
) -> bool:
    return weight is None or (weight.ndim <= 1 and numel(weight.shape) == (self.shape[-1] if self.shape else 1))


_CLASSES = Constraint(
    "C1", "self is a vector or a matrix of some classes", _has_classes,
    Refused("multi_margin_loss", (f32(5, 0), i64(5))),
)  # fmt: skip
_ONE_TARGET = Constraint(
    "C2", "there is one target for each row", _one_target_each, Refused("multi_margin_loss", (f32(5, 4), i64(3)))
)
_WEIGHED_MARGINS = Constraint(
    "C3", "weight has an element for each class", _weighs_margins,
    Refused("multi_margin_loss", (f32(5, 4), i64(5), 1, 1, f32(5))),
)  # fmt: skip


@TABLE.rule("multi_margin_loss", requires=(_CLASSES, _ONE_TARGET, _WEIGHED_MARGINS))
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


_LABELS = Constraint(
    "C1", "self and target have the same shape, a vector's or a matrix's of some classes",
    lambda self, target, reduction: (
        self.ndim <= 2 and 0 not in self.shape[-1:] and (target.shape or (1,)) == (self.shape or (1,))
    ),
    Refused("multilabel_margin_loss_forward", (f32(3, 4), i64(3, 5), 1)),
)  # fmt: skip


@TABLE.rule("multilabel_margin_loss_forward", requires=(_LABELS,))
def _multilabel_margin(self: Meta, target: Meta, reduction: int) -> tuple[Meta, Meta]:
    is_target = contiguous(target.shape, self.dtype, self.device)
    if reduction != _NONE or target.ndim <= 1:
        return _scalar(self), is_target
    return contiguous(self.shape[:1], self.dtype, self.device), is_target


def _lengths_fit(
    log_probs: Meta, targets: Meta, input_lengths: Sequence[int], target_lengths: Sequence[int], *_: Any
) -> bool:
    time, batch = log_probs.shape[:2]
    fits = len(input_lengths) == batch and len(target_lengths) == batch
    return fits and all(0 <= length <= time for length in input_lengths) and all(n >= 0 for n in target_lengths)


def _targets_fit(
    log_probs: Meta, targets: Meta, input_lengths: Sequence[int], target_lengths: Sequence[int], *_: Any
) -> bool:
    if targets.ndim == 1:
        return bool(targets.shape[0] == sum(target_lengths))
    batch = log_probs.shape[1]
    return targets.ndim == 2 and targets.shape[0] == batch and max(target_lengths, default=0) <= targets.shape[1]


def _blank_is_class(
    log_probs: Meta,
    targets: Meta,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> bool:
    return 0 <= blank < log_probs.shape[2]


_LENGTHS = Constraint(
    "C1", "there are lengths for each of the batch, none longer than the input or negative", _lengths_fit,
    Refused("_ctc_loss", (f32(3, 1, 4), i64(1, 2), [9], [2])),
)  # fmt: skip
_TARGETS = Constraint(
    "C2", "targets has a row of the greatest length for each of the batch, or is all of them in a row", _targets_fit,
    Refused("_ctc_loss", (f32(3, 1, 4), i64(1, 2), [3], [3])),
)  # fmt: skip
_BLANK = Constraint(
    "C3", "blank is a class", _blank_is_class, Refused("_ctc_loss", (f32(3, 1, 4), i64(1, 2), [3], [2], 4))
)


@TABLE.rule("_ctc_loss", requires=(_LENGTHS, _TARGETS, _BLANK))
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


TABLE.ask(
    """nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss
    binary_cross_entropy_with_logits multi_margin_loss multilabel_margin_loss_forward nll_loss_backward
    nll_loss2d_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
    soft_margin_loss_backward multi_margin_loss_backward multilabel_margin_loss_backward""",
    question=Question(fill=0),
)
