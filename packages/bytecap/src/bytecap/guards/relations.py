"""Conditions on size symbols as postfix programs for the C evaluator."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from bytecap.guards.errors import GuardError
from stagewire.capture import Relation
from stagewire.expr import Dim

Op = tuple[str, int]

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
}  # fmt: skip


def postfix(dim: Dim, symbols: Mapping[str, int]) -> tuple[Op, ...]:
    """`dim` as postfix operations; a symbol becomes its index.

    >>> from stagewire.expr import parse_expr
    >>> postfix(parse_expr("2*s0"), {"s0": 0})
    (('const', 2), ('symbol', 0), ('*', 0))
    """
    if isinstance(dim, int):
        return (("const", dim),)
    return tuple(_walk(_parsed(dim.text), symbols, dim.text))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _walk(node: ast.expr, symbols: Mapping[str, int], text: str) -> list[Op]:
    match node:
        case ast.Constant(value=int() as number):
            return [("const", number)]
        case ast.Name(id=name):
            if name not in symbols:
                raise GuardError(f"the symbol {name!r} of {text!r} has no source")
            return [("symbol", symbols[name])]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return [("const", 0), *_walk(operand, symbols, text), ("-", 0)]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            both = _walk(left, symbols, text) + _walk(right, symbols, text)
            return [*both, (_OPERATORS[type(op)], 0)]
        case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=args):
            program = _walk(args[0], symbols, text)
            for arg in args[1:]:
                program += [*_walk(arg, symbols, text), (name.lower(), 0)]
            return program
    raise GuardError(f"{ast.unparse(node)!r} in {text!r} is outside the grammar of sizes")


def relation_program(relation: Relation, symbols: Mapping[str, int]) -> tuple[Op, ...]:
    """The whole condition: not zero when it holds."""
    left, right = postfix(relation.left, symbols), postfix(relation.right, symbols)
    return (*left, *right, (relation.operator, 0))
