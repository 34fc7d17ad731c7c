"""Between torch's symbolic sizes (`torch.SymInt` over its ShapeEnv) and those of documents.

    size     ::= SymInt  <->  stagewire.expr.Dim          the same expression, over symbols of the same names
    relation ::= a condition that stages rely on; `require` makes it a guard of torch's

torch.compile hands its own sizes to back ends, and its guards check what these ask; `TorchSizes` makes such sizes for
back ends that stand behind our capture, and tells what they asked.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from stagefold.errors import SizesRefused
from stagefold.torch_capabilities import foreign
from stagewire.capture import COMPARED, Relation, Symbol
from stagewire.errors import ExprError
from stagewire.expr import Dim, parse_expr, steps_of

_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "Min": torch.sym_min, "Max": torch.sym_max,
}  # fmt: skip


def dim_of_torch(size: torch.SymInt) -> Dim:
    """A size of torch's as documents write it. One that they cannot write is fixed, which torch guards."""
    try:
        return _parsed(size.node.expr)
    except ExprError:
        return int(size)


def _parsed(expression: Any) -> Dim:
    tree = ast.parse(str(expression), mode="eval")
    return parse_expr(ast.unparse(_Remainders().visit(tree)))


class _Remainders(ast.NodeTransformer):
    """sympy prints remainders as calls."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="Mod" | "PythonMod"), args=[left, right]):
                return ast.BinOp(left, ast.Mod(), right)
        return node


def symbols_among(examples: Iterable[Any]) -> dict[str, torch.SymInt]:
    """The symbols that ints, and sizes of tensors, are made of, as sizes of torch's, by name."""
    found: dict[str, torch.SymInt] = {}
    for example in examples:
        is_tensor = isinstance(example, torch.Tensor)
        sizes = (*example.shape, *example.stride(), example.storage_offset()) if is_tensor else (example,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                env = size.node.shape_env
                for symbol in size.node.expr.free_symbols:
                    if symbol.name not in found:
                        found[symbol.name] = env.create_symintnode(symbol, hint=None)
    return found


def range_of(size: Any) -> tuple[int, int | None, int | None]:
    """What a size is worth, and the least and the greatest that torch takes it for; None where that is open."""
    if not isinstance(size, torch.SymInt):
        return int(size), None, None
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    lower, upper = (int(bound) if bound.is_Integer else None for bound in (bounds.lower, bounds.upper))
    most = None if upper is None or upper >= _UNBOUNDED else upper
    return int(size.node.hint), None if lower is None or lower <= -_UNBOUNDED else lower, most


_UNBOUNDED = (1 << 62) - 1


def require(relations: Iterable[Relation], sizes: Mapping[str, Any]) -> None:
    """Have torch guard what the stages rely on. sizes: torch's, by the names of symbols."""
    for relation in relations:
        bool(COMPARED[relation.operator](value_of(relation.left, sizes), value_of(relation.right, sizes)))


class TorchSizes:
    """torch's sizes for the symbols of a capture, in a ShapeEnv of their own, and what a back end asked of them."""

    def __init__(self, symbols: Iterable[Symbol]) -> None:
        self.env = foreign().shape_env()
        self.of: dict[str, Any] = {}
        self._names: dict[Any, Any] = {}
        for one in symbols:
            source = foreign().local_source(one.name)
            at_least_two = one.lower is not None and one.lower >= 2
            made = self.env.create_symbol(
                one.hint,
                source,
                dynamic_dim=foreign().dynamic_size,
                positive=None if one.lower is None else True,
                do_not_specialize_zero_one=not at_least_two,
            )
            self.of[one.name] = self.env.create_symintnode(made, hint=one.hint, source=source)
            self._names[made] = type(made)(one.name, integer=True)

    def value(self, dim: Dim) -> Any:
        """A size as a SymInt, or the int that it is."""
        return value_of(dim, self.of)

    def asked(self) -> tuple[Relation, ...]:
        """What a back end took for true of the symbols. Raises `SizesRefused` where documents cannot write it."""
        return tuple(_relations([guard.expr.xreplace(self._names) for guard in self.env.guards], "the back end"))


def guards_of(sizes: Mapping[str, torch.SymInt]) -> tuple[Relation, ...]:
    """What torch took for true of these symbols while it traced. Raises `SizesRefused` for what documents cannot write.

    A condition on others is none of the graph's: torch has put what they are into the graph.
    """
    envs = {id(size.node.shape_env): size.node.shape_env for size in sizes.values()}
    every = (guard.expr for env in envs.values() for guard in env.guards)
    return tuple(_relations([one for one in every if {s.name for s in one.free_symbols} <= sizes.keys()], "the graph"))


def _relations(conditions: Iterable[Any], who: str) -> Iterator[Relation]:
    """who: relies on them, for the error."""
    for condition in conditions:
        if type(condition).__name__ == "And":
            yield from _relations(condition.args, who)
            continue
        sign = getattr(condition, "rel_op", None)
        if sign not in COMPARED:
            raise SizesRefused(f"{who} relies on {condition}")
        try:
            yield Relation(_parsed(condition.lhs), sign, _parsed(condition.rhs))
        except ExprError as error:
            raise SizesRefused(f"{who} relies on {condition}") from error


def value_of(
    dim: Dim, sizes: Mapping[str, Any], apply: Callable[[Callable[[Any, Any], Any], Any, Any], Any] | None = None
) -> Any:
    """A size as torch computes it of its own; `apply` may do the single operations."""
    stack: list[Any] = []
    for kind, operand in steps_of(dim):
        match kind:
            case "number":
                stack.append(operand)
            case "symbol":
                stack.append(sizes[str(operand)])
            case _:
                right = stack.pop()
                left = stack.pop()
                stack.append(_STEPS[kind](left, right) if apply is None else apply(_STEPS[kind], left, right))
    return stack.pop()
