"""What it costs to compute a forward value again in the backward; and, for a memory budget, which may leave no choice,
what it costs for values that are better saved (`Costs`)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import msgspec

from aotgrad.ops import is_random, is_repeatable, is_view, packet_of
from aotgrad.partition.needs import Sizes
from stagewire import loop_ops
from stagewire.expr import Expr, evaluate
from stagewire.graph import Node, Ref, Value
from stagewire.graph_passes import operands
from stagewire.types import TensorType


def _packets(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


def _prims(names: str) -> frozenset[str]:
    return frozenset(f"prims.{name}" for name in names.split())


# Pointwise ops whose vector code runs a polynomial or several divisions for each element.
TRANSCENDENTAL: frozenset[str] = _packets(
    "acos acosh asin asinh atan atan2 atanh celu cos cosh elu erf erfc exp exp2 expm1 gelu hypot log log10 log1p log2 "
    "log_sigmoid_forward logaddexp logit mish pow selu sigmoid silu sin sinc sinh softplus tan tanh xlogy"
)
# Pointwise ops and fillings, by packet: one pass over memory, fused into their consumers.
RECOMPUTABLE: frozenset[str] = TRANSCENDENTAL | _packets(
    "_to_copy abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift ceil clamp clamp_max clamp_min clone complex copy copysign deg2rad div eq fill floor "
    "floor_divide fmax fmin fmod frac full full_like ge glu gt hardshrink hardsigmoid hardswish hardtanh heaviside "
    "isinf isnan ldexp le leaky_relu lerp lift_fresh logical_and logical_not logical_or logical_xor lt masked_fill "
    "maximum minimum mul nan_to_num ne neg nextafter ones ones_like prelu reciprocal relu relu6 remainder round rsqrt "
    "rsub scalar_tensor select_scatter sgn sign signbit slice_scatter softshrink sqrt square sub threshold tril triu "
    "trunc where zeros zeros_like arange new_zeros new_ones new_full"
)
# The same for prims, which a decomposed joint graph is made of.
TRANSCENDENTAL |= _prims(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv "
    "lgamma digamma sigmoid atan2 hypot pow"
)
_POINTWISE = " ".join(name for name, op in loop_ops.OPS.items() if op.family not in ("casts", "checks", "random"))
RECOMPUTABLE |= _prims(_POINTWISE) | _prims(
    "convert_element_type bitcast clone cat pad full iota slice_scatter philox_uniform"
)
_FEW_PRODUCTS = ((1,), (2,), (3,), (0.5,), (-0.5,), (-1,))


class Policy(msgspec.Struct, frozen=True):
    """Costs of one node at a time, in quarters of a byte moved; a user may give an object with the same two methods.

    recomputable: packets ("aten.add") that may be computed again; None for `RECOMPUTABLE`.
    pointwise, transcendental: cost for each element of the result. Saving a float32 costs 32: it is written once and
    read once. So a transcendental is cheaper than one saved float32, and dearer than one saved bfloat16 (on a CUDA
    device, which computes while it waits for memory, it is cheaper than that too: transcendental_on_cuda). A random
    number by formula (`drawn`) is cheaper than one that is saved, and dearer than the byte of a mask made of it.
    """

    recomputable: frozenset[str] | None = None
    pointwise: int = 1
    transcendental: int = 17
    transcendental_on_cuda: int = 6
    drawn: int = 12

    def is_free(self, node: Node) -> bool:
        """Costs nothing to compute again and gains nothing to save: a view."""
        return is_view(node.target)

    def element_cost(self, node: Node) -> int | None:
        """Cost for each element of the result; None where it must not be computed again.

        Random ops never are: they would draw other numbers.
        """
        packet = packet_of(node.target)
        if packet not in (RECOMPUTABLE if self.recomputable is None else self.recomputable) or is_random(node):
            return 0 if self.is_free(node) else None
        if packet == "aten.pow" and node.args[1:] in _FEW_PRODUCTS:
            return self.pointwise
        if packet == "prims.philox_uniform":
            return self.drawn
        if packet not in TRANSCENDENTAL:
            return self.pointwise
        kind = node.results[0].type
        on_cuda = isinstance(kind, TensorType) and kind.device.startswith("cuda")
        return self.transcendental_on_cuda if on_cuda else self.transcendental


# Multiplications in the time of one byte moved: of the order of what processors and accelerators do.
_PRODUCTS_A_BYTE = 8
_QUARTERS = 4


class Costs(msgspec.Struct, frozen=True, eq=False):
    """Costs in quarters of a byte moved, as in `Policy`: operands read, results written, products computed."""

    values: dict[str, Value]
    sizes: Sizes
    policy: Policy

    def of(self, node: Node) -> int | None:
        """The cost of running the node again; None where it would not give the same."""
        if not is_repeatable(node):
            return None
        moved = sum(self.sizes.bytes(self.values[name].type) for name in operands(node))
        moved += sum(self.sizes.bytes(value.type) for value in node.results)
        count = _PRODUCTS.get(packet_of(node.target))
        products = 0 if count is None else count(self, node)
        return _QUARTERS * (moved + products // _PRODUCTS_A_BYTE)

    def shape(self, node: Node, position: int) -> tuple[int, ...]:
        """The sizes of an operand."""
        arg = node.args[position]
        kind = self.values[arg.name].type if isinstance(arg, Ref) else None
        if not isinstance(kind, TensorType):
            return (1,)
        return tuple(evaluate(size, self.sizes.hints) for size in kind.shape) or (1,)

    def elements(self, node: Node) -> int:
        """The size of the first result."""
        return self.sizes.elements(node.results[0].type)


def _product(position: int) -> Callable[[Costs, Node], int]:
    """Rows times columns: as many products for each element of the result as the first matrix has columns."""
    return lambda costs, node: costs.elements(node) * costs.shape(node, position)[-1]


def _attention(costs: Costs, node: Node) -> int:
    return 2 * costs.elements(node) * costs.shape(node, 1)[-2]


def _packed_attention(longest: int) -> Callable[[Costs, Node], int]:
    """Of [total, heads, width]: at most as many keys a query as the argument at this place says."""

    def count(costs: Costs, node: Node) -> int:
        length = node.args[longest]
        keys = evaluate(length, costs.sizes.hints) if isinstance(length, (int, Expr)) else costs.shape(node, 1)[-3]
        return 2 * costs.elements(node) * keys

    return count


_PRODUCTS: dict[str, Callable[[Costs, Node], int]] = {
    "aten.mm": _product(0),
    "aten.bmm": _product(0),
    "aten.mv": _product(0),
    "aten.addmm": _product(1),
    "aten.baddbmm": _product(1),
    "aten.addmv": _product(1),
    "aten.convolution": lambda costs, node: costs.elements(node) * prod(costs.shape(node, 1)[1:]),
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention": _attention,
    "aten._scaled_dot_product_efficient_attention": _attention,
    "aten._scaled_dot_product_cudnn_attention": _attention,
    "stagefold.flex_attention": _attention,
    "aten._flash_attention_forward": _packed_attention(6),
    "aten._efficient_attention_forward": _packed_attention(7),
}
