"""Distances and losses as the prims of the family "metrics"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.linalg import exactly
from primops.decompositions.operands import Table
from primops.decompositions.windows import as_it_is


def pdist(p: Builder, x: Value, exponent: float = 2.0) -> Value:
    return p.pdist(x, exponent)


def ctc_loss(
    p: Builder, logs: Value, targets: Value, input_lengths: Sequence[int], target_lengths: Sequence[int],
    blank: int = 0, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    return p.ctc_loss(logs, targets, tuple(input_lengths), tuple(target_lengths), blank, zero_infinity)


def ctc_loss_backward(
    p: Builder, grad: Value, logs: Value, targets: Value, input_lengths: Sequence[int], target_lengths: Sequence[int],
    loss: Value, alpha: Value, blank: int, zero_infinity: bool = False,
) -> Value:  # fmt: skip
    lengths = tuple(input_lengths), tuple(target_lengths)
    return p.ctc_loss_backward(grad, logs, targets, *lengths, loss, alpha, blank, zero_infinity)


TABLE: Table = {
    name: exactly(function)
    for name, function in {
        "aten._cdist_forward.default": as_it_is("cdist"),
        "aten._cdist_backward.default": as_it_is("cdist_backward"),
        "aten._euclidean_dist.default": as_it_is("euclidean_dist"),
        "aten._pdist_forward.default": pdist,
        "aten._pdist_backward.default": as_it_is("pdist_backward"),
        "aten._ctc_loss.default": ctc_loss,
        "aten._ctc_loss_backward.default": ctc_loss_backward,
        "aten.multilabel_margin_loss_forward.default": as_it_is("multilabel_margin_loss"),
        "aten.multilabel_margin_loss_backward.default": as_it_is("multilabel_margin_loss_backward"),
    }.items()
}
