"""Rules of `_foreach_*` ops on lists of tensors: the rule of the single op, tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.meta import Meta
from absint.rules import elementwise, reduce
from absint.rules.results import empty_like
from absint.rules.table import RuleTable, TypeOf
from absint.signatures import full_name
from stagewire.capabilities import find

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


@cache
def _single(name: str) -> TypeOf:
    """The rule of the op on one tensor."""
    name = full_name(name)
    rules = reduce.TABLE if name in reduce.TABLE else elementwise.TABLE
    return rules[name].bound(find(torch, f"torch.ops.{name}"))


def _each(name: str) -> TypeOf:
    """The op on every tensor of a list."""

    def of_list(self: Sequence[Meta], /) -> list[Meta]:
        rule = _single(name)
        return [rule(tensor) for tensor in self]

    return of_list


def _with_list(name: str) -> TypeOf:
    def of_lists(self: Sequence[Meta], other: Sequence[Any], /) -> list[Meta]:
        if len(self) != len(other):
            raise TypeRuleError(f"Tensor lists must have the same number of tensors, got {len(self)} and {len(other)}")
        rule = _single(name)
        return [rule(tensor, item) for tensor, item in zip(self, other, strict=True)]

    return of_lists


def _with_one(name: str) -> TypeOf:
    def of_one(self: Sequence[Meta], other: Any, /) -> list[Meta]:
        rule = _single(name)
        return [rule(tensor, other) for tensor in self]

    return of_one


def _addc(self: Sequence[Meta], tensor1: Sequence[Meta], tensor2: Sequence[Meta]) -> list[Meta]:
    return [_single("addcmul")(*operands) for operands in zip(self, tensor1, tensor2, strict=True)]


def _lerp(self: Sequence[Meta], tensors1: Sequence[Meta]) -> list[Meta]:
    return [_single("lerp.Scalar")(tensor, end, 0.5) for tensor, end in zip(self, tensors1, strict=True)]


def _norm(self: Sequence[Meta], ord: Any, dtype: torch.dtype | None) -> list[Meta]:
    return [_single("linalg_vector_norm")(tensor, ord, dtype=dtype) for tensor in self]


TABLE.rows({f"_foreach_{name}": _each(name) for name in _UNARY.split()})
for _name, (_on_tensor, _on_number) in _BINARY.items():
    TABLE.rows({
        f"_foreach_{_name}.List": _with_list(_on_tensor),
        f"_foreach_{_name}.ScalarList": _with_list(_on_number),
        f"_foreach_{_name}.Scalar": _with_one(_on_number),
    })  # fmt: skip
TABLE.rows({f"_foreach_{name}.Tensor": _with_one(f"{name}.Tensor") for name in ("add", "mul", "div")})
TABLE.rows({
    """_foreach_addcmul.Scalar _foreach_addcmul.ScalarList _foreach_addcmul.Tensor
    _foreach_addcdiv.Scalar _foreach_addcdiv.ScalarList _foreach_addcdiv.Tensor
    """: _addc,
    "_foreach_lerp.List _foreach_lerp.Scalar _foreach_lerp.ScalarList": _lerp,
    "_foreach_norm.Scalar": _norm,
    "_foreach_max": _each("max"),
    "_foreach_copy": lambda self: [empty_like(tensor) for tensor in self],
})  # fmt: skip
