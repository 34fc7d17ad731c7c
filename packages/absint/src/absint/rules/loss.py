"""Rules of losses and their backwards. `reduction`: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from absint.errors import TypeRuleError
from absint.kernels import Question
from absint.meta import Meta
from absint.rules.pointwise import broadcast, pointwise
from absint.rules.shapes import broadcasts_to, empty_like, fresh
from absint.rules.table import Constraint, Refused, Rule, RuleTable, f32, i64, of_data
from stagewire.types import numel

TABLE = RuleTable()
_NONE = 0


def _weighs_classes(self: Meta, weight: Meta | None) -> bool:
    classes = self.shape[-1] if self.ndim < 3 else self.shape[1]
    return weight is None or (numel(weight.shape) == classes and (weight.ndim == 1 or self.ndim > 2))


def _targets_fit(log_probs: Meta, targets: Meta, target_lengths: Sequence[int]) -> bool:
    if targets.ndim == 1:
        return bool(targets.shape[0] == sum(target_lengths))
    batch = log_probs.shape[1]
    return targets.ndim == 2 and targets.shape[0] == batch and max(target_lengths, default=0) <= targets.shape[1]


def _lengths_fit(log_probs: Meta, input_lengths: Sequence[int], target_lengths: Sequence[int]) -> bool:
    time, batch = log_probs.shape[:2]
    fits = len(input_lengths) == batch and len(target_lengths) == batch
    return fits and all(0 <= length <= time for length in input_lengths) and all(n >= 0 for n in target_lengths)


_WEIGHED = Constraint(
    "C1", "weight has an element for each class", _weighs_classes,
    Refused("nll_loss_forward", (f32(2, 5), i64(2), f32(1), 1, -100)),
)  # fmt: skip
_WEIGHED_2D = replace(_WEIGHED, refused=Refused("nll_loss2d_forward", (f32(2, 5, 3, 3), i64(2, 3, 3), f32(1), 1, -100)))
_PIXELS = Constraint(
    "C2", "target has an element for each pixel",
    lambda self, target: target.shape == (self.shape[0], *self.shape[2:]),
    Refused("nll_loss2d_forward", (f32(2, 5, 3, 3), i64(2, 3, 4), None, 1, -100)),
)  # fmt: skip
_SAME_SHAPE = Constraint(
    "C1", "self and target have the same shape", lambda self, target: self.shape == target.shape,
    Refused("binary_cross_entropy", (f32(3), f32(4))),
)  # fmt: skip
_WEIGHT_FITS = Constraint(
    "C2", "weight broadcasts to self", lambda self, weight: weight is None or broadcasts_to(weight.shape, self.shape),
    Refused("binary_cross_entropy", (f32(3), f32(3), f32(2))),
)  # fmt: skip
# Eager writes each step of this loss into `1 - target`, and weighs `log_sigmoid(self)` in place.
_LOGITS = Constraint(
    "C1", "self broadcasts to target", lambda self, target: broadcasts_to(self.shape, target.shape),
    Refused("binary_cross_entropy_with_logits", (f32(3), f32(1))),
)  # fmt: skip
_LOGITS_WEIGHT = Constraint(
    "C2", "weight broadcasts to target", lambda target, weight: (
        weight is None or broadcasts_to(weight.shape, target.shape)
    ),
    Refused("binary_cross_entropy_with_logits", (f32(3), f32(3), f32(2))),
)  # fmt: skip
_LOGITS_POSITIVE = Constraint(
    "C3", "target and pos_weight broadcast to self", lambda self, target, pos_weight: (
        pos_weight is None or broadcasts_to(broadcast(pos_weight.shape, target.shape), self.shape)
    ),
    Refused("binary_cross_entropy_with_logits", (f32(1), f32(1), None, f32(2))),
)  # fmt: skip
_SOFT_MARGIN = Constraint(
    "C1", "target broadcasts to self", lambda self, target: broadcasts_to(target.shape, self.shape),
    Refused("soft_margin_loss", (f32(1), f32(3))),
)  # fmt: skip
_CLASSES = Constraint(
    "C1", "self is a vector or a matrix of some classes", lambda self: self.ndim <= 2 and 0 not in self.shape[-1:],
    Refused("multi_margin_loss", (f32(5, 0), i64(5))),
)  # fmt: skip
_ONE_TARGET = Constraint(
    "C2", "there is one target for each row", lambda self, target: (
        target.ndim <= 1 and numel(target.shape) == (self.shape[0] if self.ndim == 2 else 1)
    ),
    Refused("multi_margin_loss", (f32(5, 4), i64(3))),
)  # fmt: skip
_WEIGHED_MARGINS = Constraint(
    "C3", "weight has an element for each class", lambda self, weight: (
        weight is None or (weight.ndim <= 1 and numel(weight.shape) == (self.shape[-1] if self.shape else 1))
    ),
    Refused("multi_margin_loss", (f32(5, 4), i64(5), 1, 1, f32(5))),
)  # fmt: skip
_LABELS = Constraint(
    "C1", "self and target have the same shape, a vector's or a matrix's of some classes", lambda self, target: (
        self.ndim <= 2 and 0 not in self.shape[-1:] and (target.shape or (1,)) == (self.shape or (1,))
    ),
    Refused("multilabel_margin_loss_forward", (f32(3, 4), i64(3, 5), 1)),
)  # fmt: skip
_LENGTHS = Constraint(
    "C1", "there are lengths for each of the batch, none longer than the input or negative", _lengths_fit,
    Refused("_ctc_loss", (f32(3, 1, 4), i64(1, 2), [9], [2])),
)  # fmt: skip
_TARGETS = Constraint(
    "C2", "targets has a row of the greatest length for each of the batch, or is all of them in a row", _targets_fit,
    Refused("_ctc_loss", (f32(3, 1, 4), i64(1, 2), [3], [3])),
)  # fmt: skip
_BLANK = Constraint(
    "C3", "blank is a class", lambda log_probs, blank: 0 <= blank < log_probs.shape[2],
    Refused("_ctc_loss", (f32(3, 1, 4), i64(1, 2), [3], [2], 4)),
)  # fmt: skip


def _loss(unreduced: Meta, reduction: int) -> Meta:
    return unreduced if reduction == _NONE else fresh(unreduced, ())


def _pointwise(self: Meta, target: Meta, reduction: int) -> Meta:
    return _loss(pointwise((self, target)), reduction)


def _nll(self: Meta, target: Meta, reduction: int) -> tuple[Meta, Meta]:
    batch = self.shape[:-1]
    if target.shape != batch and (self.ndim != 1 or target.shape != (1,)):
        raise TypeRuleError(f"size mismatch (got input: {list(self.shape)}, target: {list(target.shape)})")
    return fresh(self, batch if reduction == _NONE and self.ndim == 2 else ()), fresh(self, ())


def _ctc(log_probs: Meta, target_lengths: Sequence[int]) -> tuple[Meta, Meta]:
    time, batch, _ = log_probs.shape
    longest = max(target_lengths, default=0)
    return fresh(log_probs, (batch,)), fresh(log_probs, (batch, time, 2 * longest + 1))


TABLE.rows({
    "nll_loss_forward": Rule(_nll, (_WEIGHED,)),
    "nll_loss2d_forward": Rule(
        lambda self, target, reduction: (fresh(self, target.shape if reduction == _NONE else ()), fresh(self, ())),
        (_WEIGHED_2D, _PIXELS),
    ),
    """nll_loss_backward nll_loss2d_backward binary_cross_entropy_backward multi_margin_loss_backward
    multilabel_margin_loss_backward""": lambda self: fresh(self),
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward": lambda grad_output, self, target: (
        fresh(self) if broadcast(self.shape, target.shape) == self.shape else pointwise((self, target, grad_output))
    ),
    "soft_margin_loss_backward": lambda self, target: pointwise((target, pointwise((target, self)))),
    "mse_loss smooth_l1_loss": _pointwise,
    "huber_loss": lambda self, target, reduction: _loss(pointwise((self, target), None, self.dtype), reduction),
    "soft_margin_loss": Rule(lambda self, reduction: _loss(empty_like(self), reduction), (_SOFT_MARGIN,)),
    "binary_cross_entropy": Rule(
        lambda self, reduction: _loss(fresh(self), reduction), (_SAME_SHAPE, _WEIGHT_FITS)
    ),
    "binary_cross_entropy_with_logits": Rule(
        lambda target, reduction: _loss(pointwise((target,)), reduction), (_LOGITS, _LOGITS_WEIGHT, _LOGITS_POSITIVE)
    ),
    "multi_margin_loss": Rule(
        lambda self, target, reduction: _loss(fresh(self, target.shape), reduction),
        (_CLASSES, _ONE_TARGET, _WEIGHED_MARGINS),
    ),
    "multilabel_margin_loss_forward": Rule(
        lambda self, target, reduction: (
            fresh(self, () if reduction != _NONE or target.ndim <= 1 else self.shape[:1]), fresh(self, target.shape)
        ),
        (_LABELS,),
    ),
}, Question(fill=0))  # fmt: skip
TABLE.rows({
    "_ctc_loss": Rule(_ctc, (_LENGTHS, _TARGETS, _BLANK)),
    "_ctc_loss.Tensor": of_data("the work space of ctc_loss is as large as the longest target length says"),
    "_ctc_loss_backward _ctc_loss_backward.Tensor": lambda log_probs: fresh(log_probs),
})  # fmt: skip
