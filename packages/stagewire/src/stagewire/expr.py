"""Sizes: `Dim = int | Expr`.

An `Expr` is an integer expression over size symbols in a closed grammar:

    expr ::= integer | symbol | -expr | expr + expr | expr - expr | expr * expr | expr ** integer
           | expr // expr | expr % expr | Min(expr, ...) | Max(expr, ...) | (expr)

`//` and `%` are Python's: they round to minus infinity.

It is stored as canonical text, so equality is text equality and the wire form is the text itself.
Sums and products of symbols are computed here (`stagewire.polynomial`); the rest goes through sympy, which is imported
on its first use only.
"""

from __future__ import annotations

import ast
import importlib
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from stagewire import polynomial
from stagewire.errors import ExprError

_MOST_ROUNDS = 8


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


def symbol(name: str) -> Expr:
    """The size symbol `name` (an identifier such as "s0")."""
    if not name.isidentifier() or name in ("Min", "Max"):
        raise ExprError(f"{name!r} is not a symbol name")
    return Expr(name)


def parse_expr(text: str) -> Dim:
    """Parse and canonicalise an expression; an integer comes back as an int."""
    return _fold(_tree(text), text)


def _fold(node: ast.expr, text: str) -> Dim:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return Expr(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _binary("*", -1, _fold(operand, text))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _TEXT_OF:
            return _binary(_TEXT_OF[type(op)], _fold(left, text), _fold(right, text))
    return _combine(_build(node, text))


@lru_cache(maxsize=4096)
def symbols_of(dim: Dim) -> frozenset[str]:
    """The names of the symbols that occur in `dim`."""
    if isinstance(dim, int):
        return frozenset()
    return frozenset(node.id for node in ast.walk(_tree(dim.text)) if isinstance(node, ast.Name)) - {"Min", "Max"}


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The integer that `dim` is worth when its symbols have `values`."""
    if isinstance(dim, int):
        return dim
    return _evaluate(_tree(dim.text), values, dim.text)


def evaluator(dim: Dim) -> Callable[[Mapping[str, int]], int]:
    """A function of the symbols' values that gives what `dim` is worth; faster than `evaluate` when called often.

    >>> evaluator(symbol("n") * 2)({"n": 4})
    8
    """
    if isinstance(dim, int):
        number = dim
        return lambda values: number
    return _evaluator(_tree(dim.text), dim.text)


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
            power: int = _evaluate(left, values, text) ** exponent
            return power
        case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=args, keywords=[]) if args:
            return (min if name == "Min" else max)(_evaluate(a, values, text) for a in args)
        case _:
            raise _outside(node, text)


_INTEGER_MEANING: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}


def _outside(node: ast.expr, text: str) -> ExprError:
    return ExprError(f"{ast.unparse(node)!r} in {text!r} is outside the grammar")


@lru_cache(maxsize=4096)
def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExprError(f"{text!r} does not parse: {error}") from None


# sympy ships no type stubs: its values are `Any` from here on.


def _sympy() -> Any:
    return importlib.import_module("sympy")  # only symbolic programs pay for the import


def _sympy_floor(a: Any, b: Any) -> Any:
    if b == 0:
        raise ExprError(f"{a} divided by zero")
    return _sympy().floor(a / b)


def _sympy_mod(a: Any, b: Any) -> Any:
    """sympy's Mod goes wrong on symbolic divisors (Mod(-x, 2*x) is -x), so there the definition stands in its place."""
    if b == 0:
        raise ExprError(f"{a} modulo zero")
    return a % b if b.is_Integer and b > 0 else a - b * _sympy_floor(a, b)


_SYMBOLIC_MEANING: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": _sympy_floor,
    "%": _sympy_mod,
}
_TEXT_OF: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip


@lru_cache(maxsize=65536)
def _binary(operation: str, left: Dim, right: Dim) -> Dim:
    a, b = polynomial_of(left), polynomial_of(right)
    found = None if a is None or b is None else _ON_POLYNOMIALS[operation](a, b)
    if found is None:
        return _combine(_SYMBOLIC_MEANING[operation](_symbolic(left), _symbolic(right)))
    return dim_of(found)


def polynomial_of(dim: Dim) -> polynomial.Polynomial | None:
    """The polynomial that `dim` is; None where other operations than sums and products take part."""
    return polynomial.of_integer(dim) if isinstance(dim, int) else polynomial.parse(dim.text)


def dim_of(value: polynomial.Polynomial) -> Dim:
    """The size that a polynomial is."""
    if not value:
        return 0
    if len(value) == 1 and polynomial.ONE in value:
        return value[polynomial.ONE]
    return Expr(polynomial.text_of(value))


def _exact_floor(a: polynomial.Polynomial, b: polynomial.Polynomial) -> polynomial.Polynomial | None:
    """a // b where nothing but a constant is left over a constant."""
    found = _split(a, b)
    if found is None:
        return None
    quotient, rest, divisor = found
    return polynomial.add(quotient, polynomial.of_integer(rest // divisor))


def _exact_mod(a: polynomial.Polynomial, b: polynomial.Polynomial) -> polynomial.Polynomial | None:
    found = _split(a, b)
    return None if found is None else polynomial.of_integer(found[1] % found[2])


def _split(a: polynomial.Polynomial, b: polynomial.Polynomial) -> tuple[polynomial.Polynomial, int, int] | None:
    """(quotient, constant rest, the divisor where it is a constant, else 1 beside a rest of 0)."""
    found = polynomial.divide(a, b)
    if found is None:
        return None
    quotient, rest = found
    divisor = b.get(polynomial.ONE, 0) if len(b) == 1 else 0
    if rest.keys() - {polynomial.ONE} or (rest and not divisor):
        return None
    return quotient, rest.get(polynomial.ONE, 0), divisor or 1


_ON_POLYNOMIALS: dict[str, Callable[[polynomial.Polynomial, polynomial.Polynomial], polynomial.Polynomial | None]] = {
    "+": polynomial.add,
    "-": lambda a, b: polynomial.add(a, b, -1),
    "*": polynomial.multiply,
    "//": _exact_floor,
    "%": _exact_mod,
}


def _symbolic(dim: Dim) -> Any:
    return _sympy().Integer(dim) if isinstance(dim, int) else _parse(dim.text)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Any:
    return _build(_tree(text), text)


def _build(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return _sympy().Integer(number)
        case ast.Name(id=name):
            return _sympy().Symbol(name, integer=True)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_build(operand, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _TEXT_OF:
            return _SYMBOLIC_MEANING[_TEXT_OF[type(op)]](_build(left, text), _build(right, text))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)):
            return _build(left, text) ** exponent
        case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=args, keywords=[]) if args:
            return getattr(_sympy(), name)(*(_build(a, text) for a in args))
        case _:
            raise _outside(node, text)


def _combine(value: Any) -> Dim:
    """Canonical: expanded, and printed again until reading the text back changes nothing."""
    text = ""
    for _ in range(_MOST_ROUNDS):
        value = value.expand()
        if value.is_Integer:
            return int(value)
        again = _print(value)
        if again == text:
            break
        text = again
        value = _parse(text)
    return Expr(text)


def _print(value: Any) -> str:
    """Canonical text, with floor(a/b) as (a)//(b); sympy orders the arguments canonically."""
    sympy = _sympy()
    if value.is_Integer or value.is_Symbol:
        return str(value)
    if value.is_Add:
        return _print_sum(value)
    if value.is_Mul:
        return _print_product(value)
    if value.is_Pow and value.exp.is_Integer and value.exp > 0:
        return f"{_factor(value.base)}**{value.exp}"
    if isinstance(value, sympy.floor):
        numerator, denominator = sympy.fraction(sympy.together(value.args[0]))
        return f"({_print(numerator)})//({_print(denominator)})"
    if isinstance(value, sympy.ceiling):  # sympy's form of -floor(-x)
        numerator, denominator = sympy.fraction(sympy.together(-value.args[0]))
        return f"-(({_print(numerator)})//({_print(denominator)}))"
    if isinstance(value, sympy.Mod):
        return f"({_print(value.args[0])})%({_print(value.args[1])})"
    if isinstance(value, sympy.Min | sympy.Max):
        arguments = sorted(_print(arg) for arg in value.args)
        return f"{type(value).__name__}({', '.join(arguments)})"
    raise ExprError(f"{value} has no form in the grammar of sizes")


def _print_sum(value: Any) -> str:
    terms = [_print(arg) for arg in value.as_ordered_terms()]
    return terms[0] + "".join(f" - {term[1:]}" if term[0] == "-" else f" + {term}" for term in terms[1:])


def _print_product(value: Any) -> str:
    coefficient, rest = value.as_coeff_Mul()
    if not coefficient.is_Integer:
        raise ExprError(f"{value} has no form in the grammar of sizes")
    factors = [_factor(arg) for arg in rest.as_ordered_factors()]
    sign = "-" if coefficient < 0 else ""
    return sign + "*".join([str(abs(coefficient))] * (abs(coefficient) != 1) + factors)


def _factor(value: Any) -> str:
    text = _print(value)
    return text if value.is_Symbol or (value.is_Integer and value >= 0) or value.is_Pow else f"({text})"
