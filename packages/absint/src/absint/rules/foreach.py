"""Rules of `_foreach_*` ops on lists of tensors: the rule of the single op, tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.meta import Meta
from absint.rules import elementwise, movement, reduce
from absint.rules.table import Rule, RuleTable, full_name

__all__ = ["TABLE"]

TABLE = RuleTable()
_UNARY = """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal
    round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
# foreach name -> the single op on two tensors, and the one on a tensor and a number.
_BINARY = {
    "add": ("add.Tensor", "add.Scalar"),
    "sub": ("sub.Tensor", "sub.Scalar"),
    "mul": ("mul.Tensor", "mul.Scalar"),
    "div": ("div.Tensor", "div.Scalar"),
    "maximum": ("maximum", "clamp_min"),
    "minimum": ("minimum", "clamp_max"),
    "clamp_min": ("maximum", "clamp_min"),
    "clamp_max": ("minimum", "clamp_max"),
    "pow": ("pow.Tensor_Tensor", "pow.Tensor_Scalar"),
}


def _single(name: str) -> Rule:
    return elementwise.TABLE[full_name(name)]


def _each(rule: Rule) -> Rule:
    def of_list(self: Sequence[Meta]) -> list[Meta]:
        return [rule(tensor) for tensor in self]

    return of_list


def _with_list(rule: Rule) -> Rule:
    def of_lists(self: Sequence[Meta], other: Sequence[Any], **_: Any) -> list[Meta]:
        if len(self) != len(other):
            raise TypeRuleError(f"Tensor lists must have the same number of tensors, got {len(self)} and {len(other)}")
        return [rule(tensor, item) for tensor, item in zip(self, other, strict=True)]

    return of_lists


def _with_one(rule: Rule) -> Rule:
    def of_one(self: Sequence[Meta], other: Any, **_: Any) -> list[Meta]:
        return [rule(tensor, other) for tensor in self]

    return of_one


for _name in _UNARY.split():
    TABLE.add(f"_foreach_{_name}", _each(_single(_name)))
for _name, (_on_tensor, _on_number) in _BINARY.items():
    TABLE.add(f"_foreach_{_name}.List", _with_list(_single(_on_tensor)))
    TABLE.add(f"_foreach_{_name}.ScalarList", _with_list(_single(_on_number)))
    TABLE.add(f"_foreach_{_name}.Scalar", _with_one(_single(_on_number)))
for _name in ("add", "mul", "div"):
    TABLE.add(f"_foreach_{_name}.Tensor", _with_one(_single(_BINARY[_name][0])))


@TABLE.rule(
    """_foreach_addcmul.Scalar _foreach_addcmul.ScalarList _foreach_addcmul.Tensor
    _foreach_addcdiv.Scalar _foreach_addcdiv.ScalarList _foreach_addcdiv.Tensor"""
)
def _addc(self: Sequence[Meta], tensor1: Sequence[Meta], tensor2: Sequence[Meta], *_: Any, **__: Any) -> list[Meta]:
    rule = _single("addcmul")
    return [rule(*operands) for operands in zip(self, tensor1, tensor2, strict=True)]


@TABLE.rule("_foreach_lerp.List _foreach_lerp.Scalar _foreach_lerp.ScalarList")
def _lerp(self: Sequence[Meta], tensors1: Sequence[Meta], weight: Any) -> list[Meta]:
    rule = _single("lerp.Scalar")
    return [rule(tensor, end, 0.5) for tensor, end in zip(self, tensors1, strict=True)]


@TABLE.rule("_foreach_norm.Scalar")
def _norm(self: Sequence[Meta], ord: Any = 2, dtype: torch.dtype | None = None) -> list[Meta]:
    rule = reduce.TABLE["aten.linalg_vector_norm.default"]
    return [rule(tensor, ord, dtype=dtype) for tensor in self]


@TABLE.rule("_foreach_max")
def _max(self: Sequence[Meta]) -> list[Meta]:
    return [reduce.TABLE["aten.max.default"](tensor) for tensor in self]


@TABLE.rule("_foreach_copy")
def _copy(self: Sequence[Meta], src: Sequence[Meta], non_blocking: bool = False) -> list[Meta]:
    return [movement.like(tensor, None) for tensor in self]
