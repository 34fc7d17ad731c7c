"""Sizes: `Dim = int | Expr`.

An `Expr` is an integer expression over size symbols in a closed grammar:

    expr ::= integer | symbol | expr + expr | expr - expr | expr * expr
           | expr // expr | expr % expr | Min(expr, expr) | Max(expr, expr)

It is stored as canonical text, so equality is text equality and the wire form is the text itself.
Arithmetic goes through sympy, which is imported on first symbolic use only: a static program never pays for it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from stagewire.errors import ExprError

if TYPE_CHECKING:
    import sympy


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
        return _combine(_sympy(self) + _sympy(other))

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _combine(_sympy(self) - _sympy(other))

    def __rsub__(self, other: Dim) -> Dim:
        return _combine(_sympy(other) - _sympy(self))

    def __mul__(self, other: Dim) -> Dim:
        return _combine(_sympy(self) * _sympy(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return _combine(_floor(_sympy(self), _sympy(other)))

    def __rfloordiv__(self, other: Dim) -> Dim:
        return _combine(_floor(_sympy(other), _sympy(self)))

    def __mod__(self, other: Dim) -> Dim:
        return _combine(_sympy(self) % _sympy(other))

    def __rmod__(self, other: Dim) -> Dim:
        return _combine(_sympy(other) % _sympy(self))

    def __neg__(self) -> Dim:
        return _combine(-_sympy(self))

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
    return _combine(_parse(text))


def symbols_of(dim: Dim) -> frozenset[str]:
    """The names of the symbols that occur in `dim`."""
    if isinstance(dim, int):
        return frozenset()
    return frozenset(str(s) for s in _parse(dim.text).free_symbols)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The integer that `dim` is worth when its symbols have `values`."""
    if isinstance(dim, int):
        return dim
    return _evaluate(_tree(dim.text), values, dim.text)


def _evaluate(node: ast.expr, values: Mapping[str, int], text: str) -> int:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            if name not in values:
                raise ExprError(f"no value for the symbol {name!r} of {text!r}")
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, values, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluate(left, values, text), _evaluate(right, values, text)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
                case ast.Mod():
                    return a % b
                case ast.Pow():
                    return a**b
        case ast.Call(func=ast.Name(id="Min"), args=args):
            return min(_evaluate(a, values, text) for a in args)
        case ast.Call(func=ast.Name(id="Max"), args=args):
            return max(_evaluate(a, values, text) for a in args)
    raise ExprError(f"{ast.unparse(node)!r} in {text!r} is outside the grammar")


@lru_cache(maxsize=4096)
def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ExprError(f"{text!r} does not parse: {error.msg}") from None


@lru_cache(maxsize=4096)
def _parse(text: str) -> sympy.Expr:
    return _build(_tree(text), text)


def _build(node: ast.expr, text: str) -> sympy.Expr:
    import sympy  # only symbolic programs pay for the import

    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return sympy.Integer(number)
        case ast.Name(id=name):
            return sympy.Symbol(name, integer=True)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_build(operand, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _build(left, text), _build(right, text)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return _floor(a, b)
                case ast.Mod():
                    return a % b
                case ast.Pow() if b.is_Integer and b >= 0:
                    return a**b
        case ast.Call(func=ast.Name(id="Min"), args=args):
            return sympy.Min(*(_build(a, text) for a in args))
        case ast.Call(func=ast.Name(id="Max"), args=args):
            return sympy.Max(*(_build(a, text) for a in args))
    raise ExprError(f"{ast.unparse(node)!r} in {text!r} is outside the grammar")


def _sympy(dim: Dim) -> sympy.Expr:
    import sympy

    return sympy.Integer(dim) if isinstance(dim, int) else _parse(dim.text)


def _floor(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    import sympy

    return sympy.floor(a / b)


def _combine(value: sympy.Expr) -> Dim:
    return int(value) if value.is_Integer else Expr(_print(value))


def _print(value: sympy.Expr) -> str:
    """Canonical text, with floor(a/b) as a//b; sympy orders the arguments canonically."""
    import sympy

    if value.is_Integer or value.is_Symbol:
        return str(value)
    if value.is_Add:
        terms = [_print(arg) for arg in value.as_ordered_terms()]
        return " + ".join(terms).replace("+ -", "- ")
    if value.is_Mul:
        return "*".join(_factor(arg) for arg in value.as_ordered_factors())
    if value.is_Pow and value.exp.is_Integer and value.exp > 0:
        return f"{_factor(value.base)}**{value.exp}"
    if isinstance(value, sympy.floor):
        numerator, denominator = sympy.fraction(sympy.together(value.args[0]))
        return f"({_print(numerator)})//({_print(denominator)})"
    if isinstance(value, sympy.Mod):
        return f"({_print(value.args[0])})%({_print(value.args[1])})"
    if isinstance(value, sympy.Min | sympy.Max):
        arguments = sorted(_print(arg) for arg in value.args)
        return f"{type(value).__name__}({', '.join(arguments)})"
    raise ExprError(f"{value} has no form in the grammar of sizes")


def _factor(value: sympy.Expr) -> str:
    text = _print(value)
    simple = value.is_Symbol or (value.is_Integer and value >= 0) or value.is_Pow
    negative = value.is_Integer and value < 0
    return text if simple or negative else f"({text})"
