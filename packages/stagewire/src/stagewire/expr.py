"""Sizes: `Dim = int | Expr`.

An `Expr` is an integer expression over size symbols in a closed grammar:

    expr ::= integer | symbol | -expr | expr + expr | expr - expr | expr * expr | expr ** integer
           | expr // expr | expr % expr | Min(expr, ...) | Max(expr, ...) | (expr)

`//` and `%` are Python's: they round to minus infinity.

It is stored as canonical text, so equality is text equality and the wire form is the text itself. It is computed as a
polynomial (`stagewire.polynomial`).
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter

import msgspec

from stagewire.errors import ExprError
from stagewire.polynomial import MOST_CHARACTERS, RULES, Polynomial, Step, constant, largest, smallest
from stagewire.polynomial import symbol as symbol_polynomial

_Method = Callable[["Expr", "Dim"], "Dim"]


def _both_sides(operation: str) -> tuple[_Method, _Method]:
    """The methods of a size for an operation of which it is the left or the right operand."""
    return lambda self, other: _binary(operation, self, other), lambda self, other: _binary(operation, other, self)


class Expr(msgspec.Struct, frozen=True, tag="expr", tag_field="kind"):
    """One symbolic size in canonical text; build it with `symbol` or `parse_expr`.

    >>> n = symbol("s0")
    >>> (n * 2 + n).text
    '3*s0'
    >>> evaluate(n // 4, {"s0": 9})
    2
    """

    text: str

    __add__, __radd__ = _both_sides("+")
    __sub__, __rsub__ = _both_sides("-")
    __mul__, __rmul__ = _both_sides("*")
    __floordiv__, __rfloordiv__ = _both_sides("//")
    __mod__, __rmod__ = _both_sides("%")

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
    return dim_of(_read(text))


def least(first: Dim, *others: Dim) -> Dim:
    """The least of sizes.

    >>> least(symbol("n"), 8, 3)
    Expr(text='Min(3, n)')
    """
    return dim_of(smallest(polynomial_of(first), *map(polynomial_of, others)))


def greatest(first: Dim, *others: Dim) -> Dim:
    """The greatest of sizes."""
    return dim_of(largest(polynomial_of(first), *map(polynomial_of, others)))


def symbols_of(dim: Dim) -> frozenset[str]:
    """The names of the symbols that occur in `dim`."""
    return frozenset() if isinstance(dim, int) else polynomial_of(dim).symbols


def steps_of(dim: Dim) -> tuple[Step, ...]:
    """How `dim` is computed, as a postfix program: see `Polynomial.steps`."""
    return polynomial_of(dim).steps


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The integer that `dim` is worth when its symbols have `values`."""
    if isinstance(dim, int):
        return dim
    try:
        return polynomial_of(dim).evaluate(values)
    except KeyError as error:
        raise ExprError(f"no value for the symbol {error} of {dim.text!r}") from None
    except ZeroDivisionError:
        raise ExprError(f"{dim.text!r} divides by zero for {dict(values)}") from None


def evaluator(dim: Dim) -> Callable[[Mapping[str, int]], int]:
    """A function of the symbols' values that gives what `dim` is worth; faster than `evaluate` when called often.

    >>> evaluator(symbol("n") * 2)({"n": 4})
    8
    """
    if isinstance(dim, Expr) and dim.text.isidentifier():
        return itemgetter(dim.text)
    return polynomial_of(dim).evaluate


def polynomial_of(dim: Dim) -> Polynomial:
    """The polynomial that `dim` is."""
    return constant(dim) if isinstance(dim, int) else _read(dim.text)


def dim_of(value: Polynomial) -> Dim:
    """The size that a polynomial is."""
    number = value.number
    return Expr(value.text) if number is None else number


@lru_cache(maxsize=65536)
def _binary(operation: str, left: Dim, right: Dim) -> Dim:
    return dim_of(_computed(operation, polynomial_of(left), polynomial_of(right)))


def _computed(operation: str, left: Polynomial, right: Polynomial) -> Polynomial:
    try:
        return RULES[operation](left, right)
    except ZeroDivisionError:
        raise ExprError(f"{left.text} divided by zero") from None


# -- reading

_MOST_DEPTH = 300


@lru_cache(maxsize=65536)
def _read(text: str) -> Polynomial:
    """The polynomial of any text in the grammar; raises `ExprError` for other text, and what is longer or deeper than
    sizes are."""
    if is_symbol_name(text):
        return symbol_polynomial(text)
    if len(text) > MOST_CHARACTERS:
        raise ExprError(f"a size of {len(text)} characters; {MOST_CHARACTERS} is the most")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExprError(f"{_shown(text)} does not parse: {error}") from None
    return _read_tree(tree, text, _MOST_DEPTH)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def _read_tree(node: ast.expr, text: str, depth: int) -> Polynomial:
    if not depth:
        raise ExprError(f"{_shown(text)} is nested more than {_MOST_DEPTH} deep")

    def read(inner: ast.expr) -> Polynomial:
        return _read_tree(inner, text, depth - 1)

    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return constant(number)
        case ast.Name(id=name) if is_symbol_name(name):
            return symbol_polynomial(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -read(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)):
            return read(left) ** exponent
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _computed(_OPERATORS[type(op)], read(left), read(right))
        case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=args, keywords=[]) if args:
            return RULES[name](*map(read, args))
    raise ExprError(f"{_shown(ast.unparse(node))} in {_shown(text)} is outside the grammar")


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
