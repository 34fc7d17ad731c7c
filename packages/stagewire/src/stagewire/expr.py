"""Sizes: `Dim = int | Expr`.

An `Expr` is an integer expression over size symbols in a closed grammar:

    expr ::= integer | symbol | -expr | expr + expr | expr - expr | expr * expr | expr ** integer
           | expr // expr | expr % expr | Min(expr, ...) | Max(expr, ...) | (expr)

`//` and `%` are Python's: they round to minus infinity.

It is stored as canonical text, so equality is text equality and the wire form is the text itself. It is computed as a
polynomial (`stagewire.polynomial`), in which a floor, a remainder, a Min or a Max counts as one more name
(`stagewire.quotients`).
"""

from __future__ import annotations

import ast
import keyword
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from stagewire import polynomial, quotients
from stagewire.errors import ExprError


class Expr(msgspec.Struct, frozen=True, tag="expr", tag_field="kind"):
    """One symbolic size in canonical text; build it with `symbol` or `parse_expr`.

    >>> n = symbol("s0")
    >>> (n * 2 + n).text
    '3*s0'
    >>> evaluate(n // 4, {"s0": 9})
    2
    """

    text: str

    def __add__(self, other: Dim) -> Dim:
        return _binary("+", self, other)

    def __radd__(self, other: Dim) -> Dim:
        return _binary("+", other, self)

    def __sub__(self, other: Dim) -> Dim:
        return _binary("-", self, other)

    def __rsub__(self, other: Dim) -> Dim:
        return _binary("-", other, self)

    def __mul__(self, other: Dim) -> Dim:
        return _binary("*", self, other)

    def __rmul__(self, other: Dim) -> Dim:
        return _binary("*", other, self)

    def __floordiv__(self, other: Dim) -> Dim:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return _binary("//", other, self)

    def __mod__(self, other: Dim) -> Dim:
        return _binary("%", self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return _binary("%", other, self)

    def __neg__(self) -> Dim:
        return _binary("*", -1, self)

    def __str__(self) -> str:
        return self.text


Dim = int | Expr
"""A size: a number, or an expression over size symbols."""


def symbol(name: str) -> Expr:
    """The size symbol `name` (an identifier such as "s0")."""
    if not is_symbol_name(name):
        raise ExprError(f"{name!r} is not a symbol name")
    return Expr(name)


def is_symbol_name(name: str) -> bool:
    """Whether an expression can be written with this name, and read as Python."""
    return name.isidentifier() and name not in ("Min", "Max") and not keyword.iskeyword(name)


def parse_expr(text: str) -> Dim:
    """Parse and canonicalise an expression; an integer comes back as an int."""
    return dim_of(quotients.read_tree(quotients.tree(text), text))


def least(first: Dim, *others: Dim) -> Dim:
    """The least of sizes.

    >>> least(symbol("n"), 8, 3)
    Expr(text='Min(3, n)')
    """
    return _extremum("Min", min, first, others)


def greatest(first: Dim, *others: Dim) -> Dim:
    """The greatest of sizes."""
    return _extremum("Max", max, first, others)


def _extremum(name: str, choose: Callable[[int, int], int], best: Dim, others: tuple[Dim, ...]) -> Dim:
    for other in others:
        if isinstance(best, int) and isinstance(other, int):
            best = choose(best, other)
        elif best != other:
            best = parse_expr(f"{name}({best}, {other})")
    return best


@lru_cache(maxsize=4096)
def symbols_of(dim: Dim) -> frozenset[str]:
    """The names of the symbols that occur in `dim`."""
    if isinstance(dim, int):
        return frozenset()
    names = {node.id for node in ast.walk(quotients.tree(dim.text)) if isinstance(node, ast.Name)}
    return frozenset(names - {"Min", "Max"})


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The integer that `dim` is worth when its symbols have `values`."""
    if isinstance(dim, int):
        return dim
    return _evaluate(quotients.tree(dim.text), values, dim.text)


def evaluator(dim: Dim) -> Callable[[Mapping[str, int]], int]:
    """A function of the symbols' values that gives what `dim` is worth; faster than `evaluate` when called often.

    >>> evaluator(symbol("n") * 2)({"n": 4})
    8
    """
    if isinstance(dim, int):
        number = dim
        return lambda values: number
    return _evaluator(quotients.tree(dim.text), dim.text)


def _evaluator(node: ast.expr, text: str) -> Callable[[Mapping[str, int]], int]:
    match node:
        case ast.Name(id=name):
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _INTEGER_MEANING:
            meaning, first, second = _INTEGER_MEANING[type(op)], _evaluator(left, text), _evaluator(right, text)
            return lambda values: meaning(first(values), second(values))
    return lambda values: _evaluate(node, values, text)


def _evaluate(node: ast.expr, values: Mapping[str, int], text: str) -> int:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            if name not in values:
                raise ExprError(f"no value for the symbol {name!r} of {text!r}")
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, values, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _INTEGER_MEANING:
            a, b = _evaluate(left, values, text), _evaluate(right, values, text)
            if b == 0 and isinstance(op, ast.FloorDiv | ast.Mod):
                raise ExprError(f"{text!r} divides by zero for {dict(values)}")
            return _INTEGER_MEANING[type(op)](a, b)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)):
            base = _evaluate(left, values, text)
            if not 0 <= exponent <= polynomial.MOST_POWER or base.bit_length() * exponent > polynomial.MOST_BITS:
                raise ExprError(f"{text[:200]!r} has a power that is no size")
            power: int = base**exponent
            return power
        case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=args, keywords=[]) if args:
            return (min if name == "Min" else max)(_evaluate(a, values, text) for a in args)
        case _:
            raise quotients.outside(node, text)


_INTEGER_MEANING: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}


@lru_cache(maxsize=65536)
def _binary(operation: str, left: Dim, right: Dim) -> Dim:
    return dim_of(_MEANING[operation](polynomial_of(left), polynomial_of(right)))


_MEANING: dict[str, Callable[[polynomial.Polynomial, polynomial.Polynomial], polynomial.Polynomial]] = {
    "+": polynomial.add,
    "-": lambda a, b: polynomial.add(a, b, -1),
    "*": polynomial.multiply,
    "//": quotients.floor,
    "%": quotients.remainder,
}


def polynomial_of(dim: Dim) -> polynomial.Polynomial:
    """The polynomial that `dim` is, over symbols and atoms."""
    return polynomial.of_integer(dim) if isinstance(dim, int) else quotients.read(dim.text)


def dim_of(value: polynomial.Polynomial) -> Dim:
    """The size that a polynomial, over symbols and atoms, is."""
    number = quotients.number_of(value)
    return Expr(quotients.text_of(value)) if number is None else number
