"""The names under which programs call what attention is written with, by what they do."""

from __future__ import annotations

from stagewire.graph import Node, Ref, node_references

__all__ = [
    "ADD",
    "CAST",
    "DIVIDE",
    "DROPOUT",
    "EXPAND",
    "FILL",
    "LAYOUT",
    "LIKE",
    "MULTIPLY",
    "SAME",
    "SET_ITEM",
    "SHAPE",
    "SOFTMAX",
    "SUBTRACT",
    "WHERE",
    "drops",
    "is_pure",
    "may_write",
    "sharing",
    "writes_first",
]


def _arithmetic(*names: str) -> frozenset[str]:
    """`torch.name`, the method, the method in place, and the operators `__name__`, `__iname__`."""
    found = set()
    for name in names:
        found |= {f"torch.{name}", f"torch.Tensor.{name}", f"torch.Tensor.{name}_", f"operator.{name}",
                  f"operator.i{name}", f"torch.Tensor.__{name}__", f"torch.Tensor.__i{name}__"}  # fmt: skip
    return frozenset(found)


def _called(*names: str) -> frozenset[str]:
    return frozenset(f"{prefix}.{name}" for name in names for prefix in ("torch", "torch.Tensor"))


MULTIPLY = _arithmetic("mul", "multiply") | {"torch.Tensor.__rmul__"}
DIVIDE = _arithmetic("div", "truediv", "true_divide", "divide") | {"torch.Tensor.__idiv__", "torch.Tensor.__div__"}
ADD = _arithmetic("add") | {"torch.Tensor.__radd__"}
SUBTRACT = _arithmetic("sub", "subtract")
FILL = _called("masked_fill") | {"torch.Tensor.masked_fill_"}
SET_ITEM = frozenset(("torch.Tensor.__setitem__", "operator.setitem"))
WHERE = _called("where")
CAST = _called("to", "float", "half", "bfloat16", "type", "type_as")
SAME = _called("contiguous", "clone")
EXPAND = _called("expand", "expand_as", "broadcast_to")
LIKE = _called("full_like", "zeros_like", "ones_like")
SHAPE = _called("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
LAYOUT = (
    SAME
    | SHAPE
    | _called("transpose", "permute", "swapaxes", "swapdims", "movedim", "t")
    | frozenset(f"torch.Tensor.{name}.__get__" for name in ("T", "mT"))
)
SOFTMAX = _called("softmax") | {"torch.nn.functional.softmax", "torch.special.softmax"}
DROPOUT = frozenset(("torch.nn.functional.dropout", "torch.dropout", "torch.nn.functional.dropout_", "torch.dropout_"))

_PRODUCTS = _called("matmul", "bmm", "baddbmm", "mm", "addmm") | {
    "operator.matmul", "torch.Tensor.__matmul__", "torch.einsum", "torch._C._nn.linear", "torch.nn.functional.linear",
}  # fmt: skip
_COMPARISONS = frozenset(
    text
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "invert", "neg", "pow")
    for text in (f"operator.{name}", f"torch.Tensor.__{name}__")
)
_MADE = _called(
    "arange", "zeros", "ones", "full", "empty", "tensor", "zeros_like", "ones_like", "full_like", "empty_like",
    "new_zeros", "new_ones", "new_full", "new_tensor", "triu", "tril", "log", "exp", "abs", "min", "max", "where",
    "masked_fill", "softmax", "cumsum", "logical_not", "logical_and", "logical_or", "layer_norm", "embedding",
    "gather", "clamp", "sqrt", "rsqrt", "square", "sign", "floor", "ceil", "round", "repeat", "cat", "stack", "sum",
    "mean", "pow", "div", "sigmoid", "tanh", "relu", "index_select", "rsub", "sin", "cos", "outer",
) | {"torch.nn.functional.embedding", "torch.nn.functional.layer_norm"}  # fmt: skip
_IN_PLACE_ARITHMETIC = frozenset(
    name for name in MULTIPLY | DIVIDE | ADD | SUBTRACT if name.endswith("_") and not name.endswith("__")
) | frozenset(name for name in MULTIPLY | DIVIDE | ADD | SUBTRACT
              if name.startswith("operator.i") or name.startswith("torch.Tensor.__i"))  # fmt: skip
_ARITHMETIC = (MULTIPLY | DIVIDE | ADD | SUBTRACT) - _IN_PLACE_ARITHMETIC
_FRESH = _ARITHMETIC | _PRODUCTS | _COMPARISONS | _MADE | SOFTMAX

_PURE = _ARITHMETIC | _COMPARISONS | WHERE | CAST | SAME | SHAPE | _called("masked_fill", "transpose", "permute")


def is_pure(node: Node) -> bool:
    """Whether the program does the same without the call, if nobody uses what it returns."""
    if node.target in DROPOUT:
        return not writes_first(node) and drops(node) == 0
    return node.target in _PURE and "out" not in node.kwargs


def drops(node: Node) -> float | None:
    """The probability of a dropout, 0 where it is off; None if it is not known."""
    chance = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", node.kwargs.get("train", True))
    if not isinstance(chance, (int, float)) or not isinstance(training, bool):
        return None
    return float(chance) if training else 0.0


def writes_first(node: Node) -> bool:
    """Whether the call writes into its first operand, and returns that."""
    if not node.args or not isinstance(node.args[0], Ref):
        return False
    last = node.target.rpartition(".")[2]
    if node.target in DROPOUT and (node.kwargs.get("inplace") is True or node.args[3:4] == (True,)):
        return True
    return node.target in _IN_PLACE_ARITHMETIC or (last.endswith("_") and not last.endswith("__"))


def may_write(node: Node) -> tuple[str, ...]:
    """The operands that the call may change: all of them for what is not known here."""
    if node.args and isinstance(node.args[0], Ref) and (writes_first(node) or node.target in SET_ITEM):
        return (node.args[0].name,)
    return node_references(node) if _is_suspect(node) else ()


def _is_suspect(node: Node) -> bool:
    if node.target in DROPOUT:
        return False
    flagged = node.kwargs.get("inplace") is True or any(arg is True for arg in node.args[1:])
    if not node.results or "out" in node.kwargs or flagged:
        return True
    root, _, rest = node.target.partition(".")
    return (
        root not in ("torch", "operator", "math")
        or rest.startswith("ops.")
        or rest.endswith("__set__")
        or (rest.endswith("_") and not rest.endswith("__"))
    )


def sharing(node: Node) -> list[str]:
    """Operands and results of which some may share memory after the call, though they did not before."""
    if (node.target in _FRESH and "out" not in node.kwargs) or node.target in SET_ITEM:
        return []
    results = [value.name for value in node.results]
    if writes_first(node):
        return [node_references(node)[0], *results]
    return [*node_references(node), *results]
