"""Which ops are cheap enough to be computed again in the backward."""

from __future__ import annotations

import msgspec

from aotgrad.ops import is_random, is_view
from stagewire.graph import Node

__all__ = ["RECOMPUTABLE", "Policy"]

# Pointwise ops and fillings, by packet: one pass over memory, fused into their consumers.
RECOMPUTABLE: frozenset[str] = frozenset(
    f"aten.{name}"
    for name in [
        "_to_copy",
        "abs",
        "acos",
        "acosh",
        "add",
        "addcdiv",
        "addcmul",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_left_shift",
        "bitwise_right_shift",
        "ceil",
        "celu",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "complex",
        "copy",
        "copysign",
        "cos",
        "cosh",
        "deg2rad",
        "div",
        "elu",
        "eq",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "fill",
        "floor",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "frac",
        "full",
        "full_like",
        "ge",
        "gelu",
        "glu",
        "gt",
        "hardshrink",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "heaviside",
        "hypot",
        "isinf",
        "isnan",
        "ldexp",
        "le",
        "leaky_relu",
        "lerp",
        "lift_fresh",
        "log",
        "log10",
        "log1p",
        "log2",
        "log_sigmoid_forward",
        "logaddexp",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "logit",
        "lt",
        "masked_fill",
        "maximum",
        "minimum",
        "mish",
        "mul",
        "nan_to_num",
        "ne",
        "neg",
        "nextafter",
        "ones",
        "ones_like",
        "pow",
        "prelu",
        "reciprocal",
        "relu",
        "relu6",
        "remainder",
        "round",
        "rsqrt",
        "rsub",
        "scalar_tensor",
        "select_scatter",
        "selu",
        "sgn",
        "sigmoid",
        "sign",
        "signbit",
        "silu",
        "sin",
        "sinc",
        "sinh",
        "slice_scatter",
        "softplus",
        "softshrink",
        "sqrt",
        "square",
        "sub",
        "tan",
        "tanh",
        "threshold",
        "tril",
        "triu",
        "trunc",
        "where",
        "xlogy",
        "zeros",
        "zeros_like",
        "arange",
        "new_zeros",
        "new_ones",
        "new_full",
    ]
)


class Policy(msgspec.Struct, frozen=True):
    """Answers for one node at a time; a user may give an object with the same two methods.

    recomputable: packets ("aten.add") that may be computed again.
    """

    recomputable: frozenset[str] = RECOMPUTABLE

    def is_free(self, node: Node) -> bool:
        """Costs nothing to compute again and gains nothing to save: a view."""
        return is_view(node.target)

    def may_recompute(self, node: Node) -> bool:
        """May the backward compute it again. Random ops never: they would draw other numbers."""
        packet = node.target.rpartition(".")[0]
        return not is_random(node.target) and (packet in self.recomputable or self.is_free(node))
