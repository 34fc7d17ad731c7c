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


def _each(name: str, *operands: Any) -> list[Meta]:
    """The op on every tensor of the first list, with what stands in its place in other lists, or with one number."""
    rule, count = _single(name), len(operands[0])
    for other in operands[1:]:
        if isinstance(other, (list, tuple)) and len(other) != count:
            raise TypeRuleError(f"Tensor lists must have the same number of tensors, got {count} and {len(other)}")
    rows = [operand if isinstance(operand, (list, tuple)) else [operand] * count for operand in operands]
    return [rule(*row) for row in zip(*rows, strict=True)]


def _unary(name: str) -> TypeOf:
    return lambda self, /: _each(name, self)


def _binary(name: str) -> TypeOf:
    return lambda self, other, /: _each(name, self, other)


def _norm(self: Sequence[Meta], ord: Any, dtype: torch.dtype | None) -> list[Meta]:
    return [_single("linalg_vector_norm")(tensor, ord, dtype=dtype) for tensor in self]


TABLE.rows({f"_foreach_{name}": _unary(name) for name in (*_UNARY.split(), "max")})
for _name, (_on_tensor, _on_number) in _BINARY.items():
    TABLE.rows({
        f"_foreach_{_name}.List": _binary(_on_tensor),
        f"_foreach_{_name}.ScalarList _foreach_{_name}.Scalar": _binary(_on_number),
    })  # fmt: skip
TABLE.rows({f"_foreach_{name}.Tensor": _binary(f"{name}.Tensor") for name in ("add", "mul", "div")})
TABLE.rows({
    """_foreach_addcmul.Scalar _foreach_addcmul.ScalarList _foreach_addcmul.Tensor
    _foreach_addcdiv.Scalar _foreach_addcdiv.ScalarList _foreach_addcdiv.Tensor
    """: lambda self, tensor1, tensor2: _each("addcmul", self, tensor1, tensor2),
    "_foreach_lerp.List _foreach_lerp.Scalar _foreach_lerp.ScalarList":
        lambda self, tensors1: _each("lerp.Scalar", self, tensors1, 0.5),
    "_foreach_norm.Scalar": _norm,
    "_foreach_copy": lambda self: [empty_like(tensor) for tensor in self],
})  # fmt: skip
