"""Rules of `_foreach_*` ops on lists of tensors: the rule of the single op, tensor by tensor."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.meta import Meta
from absint.rules import elementwise, reduce
from absint.rules.movement import copied
from absint.rules.table import RuleTable, TypeOf
from absint.signatures import full_name
from stagewire.capabilities import find

TABLE = RuleTable()
_UNARY = """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal
    round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc max
"""
_NUMBERS = ("Scalar", "ScalarList")
_LIMITS = {"maximum": "clamp_min", "minimum": "clamp_max", "clamp_min": "clamp_min", "clamp_max": "clamp_max"}
_ON_LISTS = {
    **{name: f"{name}.Tensor" for name in ("add", "sub", "mul", "div")}, "pow": "pow.Tensor_Tensor",
    "maximum": "maximum", "clamp_min": "maximum", "minimum": "minimum", "clamp_max": "minimum",
}  # fmt: skip
_ON_NUMBERS = {
    **{name: f"{name}.Scalar" for name in ("add", "sub", "mul", "div")}, "pow": "pow.Tensor_Scalar", **_LIMITS
}  # fmt: skip
SINGLES: dict[str, str] = {
    **{f"_foreach_{name}": name for name in _UNARY.split()},
    **{f"_foreach_{name}.List": single for name, single in _ON_LISTS.items()},
    **{f"_foreach_{name}.{numbers}": single for name, single in _ON_NUMBERS.items() for numbers in _NUMBERS},
    **{f"_foreach_{name}.Tensor": f"{name}.Tensor" for name in ("add", "mul", "div")},
    "_foreach_lerp.List": "lerp.Tensor",
    "_foreach_lerp.Scalar": "lerp.Scalar",
    **{f"_foreach_{name}.{numbers}": name for name in ("addcmul", "addcdiv") for numbers in _NUMBERS},
}
"""By name of a foreach op, the op on one tensor of each list, or on one number of each."""


@cache
def _single(name: str) -> TypeOf:
    """The rule of the op on one tensor."""
    name = full_name(name)
    rules = reduce.TABLE if name in reduce.TABLE else elementwise.TABLE
    return rules[name].bound(find(torch, f"torch.ops.{name}"))


def _each(name: str, *operands: Any, **given: Any) -> list[Meta]:
    """The op on every tensor of the first list, with what stands in its place in other lists, or with one number, and
    with the same keyword arguments."""
    rule, count = _single(name), len(operands[0])
    for other in operands[1:]:
        if isinstance(other, (list, tuple)) and len(other) != count:
            raise TypeRuleError(f"Tensor lists must have the same number of tensors, got {count} and {len(other)}")
    rows = [operand if isinstance(operand, (list, tuple)) else [operand] * count for operand in operands]
    return [rule(*row, **given) for row in zip(*rows, strict=True)]


def _on(single: str, count: int) -> TypeOf:
    """The rule of a foreach op, of so many operands that say something of the types."""
    return (
        lambda self, /: _each(single, self),
        lambda self, other, /: _each(single, self, other),
        lambda self, tensor1, tensor2: _each(single, self, tensor1, tensor2),
    )[count - 1]


for _name, _of in SINGLES.items():
    _stem = _name.removeprefix("_foreach_").partition(".")[0]
    if _stem != "lerp" and _name not in ("_foreach_add.List", "_foreach_sub.List"):
        TABLE.rows({_name: _on(_of, 3 if _stem in ("addcmul", "addcdiv") else 2 if "." in _name else 1)})
TABLE.rows({
    "_foreach_addcmul.Tensor _foreach_addcdiv.Tensor": _on("addcmul", 3),
    "_foreach_add.List": lambda self, other, alpha: _each("add.Tensor", self, other, alpha=alpha),
    "_foreach_sub.List": lambda self, other, alpha: _each("sub.Tensor", self, other, alpha=alpha),
    "_foreach_lerp.List": lambda self, tensors1, weights: _each("lerp.Tensor", self, tensors1, weights),
    "_foreach_lerp.Scalar _foreach_lerp.ScalarList": lambda self, tensors1: _each("lerp.Scalar", self, tensors1, 0.5),
    "_foreach_norm.Scalar": lambda self, ord, dtype: _each("linalg_vector_norm", self, ord, dtype=dtype),
    "_foreach_copy": lambda self, src: [copied(*pair) for pair in zip(self, src, strict=True)],
})  # fmt: skip
TABLE.ask("_foreach_copy _foreach_lerp.List _foreach_add.Tensor _foreach_mul.Tensor _foreach_div.Tensor")
