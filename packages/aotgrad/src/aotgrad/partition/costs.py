"""What it costs to compute again what is better saved: for a memory budget, which may leave no choice."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import msgspec

from aotgrad.ops import is_repeatable, packet_of
from aotgrad.partition.needs import Sizes
from aotgrad.partition.policy import Policy
from stagewire.expr import evaluate
from stagewire.graph import Node, Ref, Value
from stagewire.graph_passes import operands
from stagewire.types import TensorType

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
}
