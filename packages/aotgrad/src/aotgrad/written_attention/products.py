"""Matrix products in one form: two operands, and a label for each of their dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import ascii_uppercase
from typing import NamedTuple

from stagewire.graph import List, Node, Ref, Tuple
from stagewire.types import TensorType

__all__ = ["Product", "Roles", "product_of", "roles_of_scores", "roles_of_values"]

Types = Mapping[str, TensorType]


class Product(NamedTuple):
    """result[labels[2]] = scale * sum(left[labels[0]] * right[labels[1]]) + beta * added; labels as in einsum."""

    left: str
    right: str
    labels: tuple[str, str, str]
    scale: float = 1.0
    added: str | None = None
    beta: float = 1.0


class Roles(NamedTuple):
    """A product with its operands in the order that attention names them: "bhid,bhjd->bhij" or "bhij,bhjd->bhid"."""

    first: str
    second: str
    labels: tuple[str, str, str]

    @property
    def equation(self) -> str:
        first, second, result = self.labels
        return f"{first},{second}->{result}"


def product_of(node: Node, types: Types) -> Product | None:
    """The product that a node computes; None if it is another call, or one that repeats an operand."""
    read = _READERS.get(node.target)
    found = None if read is None else read(node, types)
    if found is None or not _sizes_agree(found, types):
        return None
    return found


def _matmul(node: Node, types: Types) -> Product | None:
    operands = [*node.args, *(node.kwargs[key] for key in ("input", "other", "mat2") if key in node.kwargs)]
    if len(operands) != 2 or "out" in node.kwargs or not all(isinstance(operand, Ref) for operand in operands):
        return None
    left, right = (operand.name for operand in operands)
    if node.target.endswith("__rmatmul__"):
        left, right = right, left
    return _plain(left, right, types)


def _plain(left: str, right: str, types: Types) -> Product | None:
    rank = len(types[left].shape)
    if rank < 2 or rank != len(types[right].shape):
        return None
    lead = ascii_uppercase[: rank - 2]
    return Product(left, right, (f"{lead}id", f"{lead}dj", f"{lead}ij"))


def _baddbmm(node: Node, types: Types) -> Product | None:
    operands = [*node.args, *(node.kwargs[key] for key in ("input", "batch1", "batch2") if key in node.kwargs)]
    names = [operand.name for operand in operands if isinstance(operand, Ref)]
    factors = [node.kwargs.get(key, 1) for key in ("beta", "alpha")]
    if len(names) != 3 or len(operands) != 3 or "out" in node.kwargs:
        return None
    if not all(isinstance(factor, (int, float)) for factor in factors):
        return None
    beta, alpha = (float(factor) for factor in factors)
    found = _plain(names[1], names[2], types)
    return None if found is None else found._replace(scale=alpha, added=names[0] if beta else None, beta=beta)


def _einsum(node: Node, types: Types) -> Product | None:
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], (List, Tuple)):
        operands = list(operands[0].items)
    if not isinstance(equation, str) or node.kwargs or len(operands) != 2:
        return None
    if not all(isinstance(operand, Ref) for operand in operands):
        return None
    left, right = (operand.name for operand in operands)
    labels = _labels(equation, [len(types[name].shape) for name in (left, right)])
    return None if labels is None else Product(left, right, labels)


def _labels(equation: str, ranks: list[int]) -> tuple[str, str, str] | None:
    """The labels of "...id,...jd->...ij"; None if a label stands twice in one place or an operand is summed alone."""
    sides, arrow, result = equation.replace(" ", "").partition("->")
    operands = sides.split(",")
    if not arrow or len(operands) != 2:
        return None
    hidden = {rank - len(text.replace("...", "")) for text, rank in zip(operands, ranks, strict=True) if "..." in text}
    if len(hidden) > 1 or any(count < 0 for count in hidden):
        return None
    spare = "".join(letter for letter in ascii_uppercase if letter not in equation)[: next(iter(hidden), 0)]
    first, second, out = (text.replace("...", spare) for text in (*operands, result))
    if any(len(set(text)) != len(text) for text in (first, second, out)) or [len(first), len(second)] != ranks:
        return None
    return first, second, out


def _sizes_agree(product: Product, types: Types) -> bool:
    """Whether each label has one size: nothing is broadcast."""
    sizes: dict[str, object] = {}
    for name, labels in ((product.left, product.labels[0]), (product.right, product.labels[1])):
        for label, size in zip(labels, types[name].shape, strict=True):
            if sizes.setdefault(label, size) != size:
                return False
    return True


def roles_of_scores(product: Product) -> Roles | None:
    """Query and key of a product whose result has (..., queries, keys); None if it is no such product."""
    left, right, result = product.labels
    summed = set(left) & set(right) - set(result)
    if len(summed) != 1 or len(result) < 2:
        return None
    *lead, row, column = result
    for (first, one), (second, other) in (
        ((product.left, left), (product.right, right)), ((product.right, right), (product.left, left)),
    ):  # fmt: skip
        if set(one) == {*lead, row, *summed} and set(other) == {*lead, column, *summed}:
            return Roles(first, second, (one, other, result))
    return None


def roles_of_values(product: Product, weights: str) -> Roles | None:
    """Weights (..., queries, keys) and values of a product that sums over the keys; None if it is no such product."""
    if product.left == weights:
        first, second, one, other = product.left, product.right, product.labels[0], product.labels[1]
    else:
        first, second, one, other = product.right, product.left, product.labels[1], product.labels[0]
    result = product.labels[2]
    *lead, row, column = one
    width = set(other) - set(one)
    if len(width) != 1 or set(result) != {*lead, row, *width} or set(other) != {*lead, column, *width}:
        return None
    return Roles(first, second, (one, other, result))


_READERS: dict[str, Callable[[Node, Types], Product | None]] = {
    **dict.fromkeys(
        ("operator.matmul", "torch.matmul", "torch.Tensor.matmul", "torch.Tensor.__matmul__",
         "torch.Tensor.__rmatmul__", "torch.bmm", "torch.Tensor.bmm", "torch.mm", "torch.Tensor.mm",
         "torch.linalg.matmul"), _matmul,
    ),
    **dict.fromkeys(("torch.baddbmm", "torch.Tensor.baddbmm"), _baddbmm),
    **dict.fromkeys(("torch.einsum", "torch.functional.einsum"), _einsum),
}  # fmt: skip
