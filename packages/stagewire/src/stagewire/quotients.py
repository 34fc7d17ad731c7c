"""What no polynomial expresses: floors, remainders, Min and Max of sizes.

    atom ::= (polynomial)//(polynomial) | (polynomial)%(polynomial) | Min(polynomial, ...) | Max(polynomial, ...)

An atom is a factor of monomials like a symbol, under its canonical text; `stagewire.polynomial` computes with both.

>>> text_of(floor(read("5*n + 3"), read("4")))
'(n + 3)//(4) + n'
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import gcd

from stagewire import polynomial
from stagewire.errors import ExprError
from stagewire.polynomial import MOST_POWER, ONE, Monomial, Polynomial, add, multiply, of_integer, within_bounds

_MOST_TERMS_OF_A_POWER = 64
_MOST_SIDES = 64
_MOST_DEPTH = 300
_MOST_CHARACTERS = 16384


@lru_cache(maxsize=4096)
def tree(text: str) -> ast.expr:
    """The syntax of an expression; raises `ExprError` where it has none, or is deeper or longer than sizes are."""
    if len(text) > _MOST_CHARACTERS:
        raise ExprError(f"a size of {len(text)} characters; {_MOST_CHARACTERS} is the most")
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExprError(f"{_shown(text)} does not parse: {error}") from None
    level: list[ast.AST] = [found]
    for _ in range(_MOST_DEPTH):
        level = [inner for node in level for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.expr)]
        if not level:
            return found
    raise ExprError(f"{_shown(text)} is nested more than {_MOST_DEPTH} deep")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def outside(node: ast.expr, text: str) -> ExprError:
    """The error for syntax that is none of a size's."""
    return ExprError(f"{_shown(ast.unparse(node))} in {_shown(text)} is outside the grammar")


@lru_cache(maxsize=16384)
def read(text: str) -> Polynomial:
    """The polynomial, over symbols and atoms, of canonical text."""
    known = polynomial.parse(text)
    return read_tree(tree(text), text) if known is None else known


def read_tree(node: ast.expr, text: str) -> Polynomial:
    """The polynomial of any text in the grammar of sizes."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return within_bounds({ONE: number} if number else {})
        case ast.Name(id=name):
            return {((name, 1),): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return multiply(of_integer(-1), read_tree(operand, text))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)) if exponent >= 0:
            return _power(read_tree(left, text), exponent, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](read_tree(left, text), read_tree(right, text))
        case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=args, keywords=[]) if args:
            return choice(name, [read_tree(arg, text) for arg in args])
    raise outside(node, text)


def _power(base: Polynomial, exponent: int, text: str) -> Polynomial:
    if exponent > MOST_POWER:
        raise ExprError(f"{_shown(text)} has the power {exponent}; {MOST_POWER} is the largest")
    if len(base) > 1 and len(base) * exponent > _MOST_TERMS_OF_A_POWER:
        raise ExprError(f"{_shown(text)} has a power with too many terms")
    made = of_integer(1)
    for _ in range(exponent):
        made = multiply(made, base)
    return made


def number_of(value: Polynomial) -> int | None:
    """The value of a constant; None for others."""
    if not value:
        return 0
    return value.get(ONE) if len(value) == 1 else None


def floor(left: Polynomial, right: Polynomial) -> Polynomial:
    """`left // right`, with the multiples of `right` taken out."""
    divisor = number_of(right)
    if divisor == 0:
        raise ExprError(f"{text_of(left)} divided by zero")
    whole, rest = _without_multiples(left, right)
    remaining = number_of(rest)
    if remaining is not None and (remaining == 0 or divisor is not None):
        return add(whole, of_integer(remaining // divisor if divisor is not None else 0))
    if divisor is not None and divisor < 0:
        rest, right = multiply(of_integer(-1), rest), of_integer(-divisor)
    common = gcd(*rest.values(), *right.values())
    rest, right = _divided(rest, common), _divided(right, common)
    if number_of(right) == 1:
        return add(whole, rest)
    return add(whole, _atom(f"({text_of(rest)})//({text_of(right)})"))


def _without_multiples(left: Polynomial, right: Polynomial) -> tuple[Polynomial, Polynomial]:
    """(q, r) with left = q * right + r; for a number `right` the coefficients of r lie below it."""
    divisor = number_of(right)
    if divisor is None:
        found = polynomial.divide(left, right)
        if found is not None and not found[1]:
            return found
        return ({}, left) if len(right) > 1 else _terms_taken_out(left, right)
    parts = {monomial: divmod(coefficient, divisor) for monomial, coefficient in left.items()}
    return tuple({monomial: part[side] for monomial, part in parts.items() if part[side]} for side in (0, 1))  # type: ignore[return-value]


def _terms_taken_out(left: Polynomial, right: Polynomial) -> tuple[Polynomial, Polynomial]:
    ((divisor, count),) = right.items()
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in left.items():
        quotient = polynomial.quotient_of(monomial, divisor)
        if quotient is None or coefficient % count:
            rest[monomial] = coefficient
        else:
            whole[quotient] = coefficient // count
    return whole, rest


def remainder(left: Polynomial, right: Polynomial) -> Polynomial:
    """`left % right`, with the sign of `right`."""
    divisor = number_of(right)
    if divisor == 0:
        raise ExprError(f"{text_of(left)} modulo zero")
    if divisor is None or divisor < 0:
        return add(left, multiply(right, floor(left, right)), -1)
    rest = _without_multiples(left, right)[1]
    remaining = number_of(rest)
    if remaining is not None:
        return of_integer(remaining % divisor)
    common = gcd(*rest.values(), divisor)
    text = f"({text_of(_divided(rest, common))})%({divisor // common})"
    return multiply(of_integer(common), _atom(text))


def _divided(value: Polynomial, common: int) -> Polynomial:
    return {monomial: coefficient // common for monomial, coefficient in value.items()}


def choice(name: str, sides: Iterable[Polynomial]) -> Polynomial:
    """Min or Max of polynomials; of two that differ by a number one goes."""
    kept: list[Polynomial] = []
    for side in (inner for given in sides for inner in _sides_of(name, given)):
        if len(kept) > _MOST_SIDES:
            raise ExprError(f"{name} of more than {_MOST_SIDES} sizes")
        gaps = [number_of(add(side, other, -1)) for other in kept]
        if any(gap is not None and (gap >= 0) is (name == "Min" or gap == 0) for gap in gaps):
            continue  # what is there is as good
        kept = [other for other, gap in zip(kept, gaps, strict=True) if gap is None]
        kept.append(side)
    if len(kept) == 1:
        return kept[0]
    return _atom(f"{name}({', '.join(sorted(map(text_of, kept)))})")


def _sides_of(name: str, value: Polynomial) -> Iterable[Polynomial]:
    """Of Min(a, b) inside of a Min its own sides."""
    match tuple(value.items()):
        case [(((str() as atom, 1),), 1)] if atom.startswith(f"{name}("):
            call = tree(atom)
            assert isinstance(call, ast.Call)
            return [read_tree(arg, atom) for arg in call.args]
    return [value]


def _atom(text: str) -> Polynomial:
    if len(text) > _MOST_CHARACTERS:
        raise ExprError(f"a size of {len(text)} characters; {_MOST_CHARACTERS} is the most")
    return {((text, 1),): 1}


@lru_cache(maxsize=4096)
def is_never_negative(name: str) -> bool:
    """Whether a symbol (a size) or an atom of such is at least 0, as far as that is seen.

    >>> is_never_negative("(n + 1)//(2)"), is_never_negative("(n - 1)//(2)"), is_never_negative("Max(0, n - 1)")
    (True, False, True)
    """
    match tree(name):
        case ast.Name():
            return True
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return all(_has_no_minus(read_tree(side, name)) for side in (left, right))
        case ast.BinOp(op=ast.Mod(), right=right):
            return _has_no_minus(read_tree(right, name))
        case ast.Call(func=ast.Name(id=function), args=args):
            return (any if function == "Max" else all)(_has_no_minus(read_tree(arg, name)) for arg in args)
    return False


def _has_no_minus(value: Polynomial) -> bool:
    return all(
        coefficient > 0 and all(is_never_negative(name) for name, _ in monomial)
        for monomial, coefficient in value.items()
    )


def text_of(value: Polynomial) -> str:
    """Canonical text: terms of the highest degree first."""
    if not any("(" in name for monomial in value for name, _ in monomial):
        return polynomial.text_of(value)
    first, *others = sorted(value, key=_degree_then_text)
    text = _term(first, value[first])
    for monomial in others:
        coefficient = value[monomial]
        text += f" {'-' if coefficient < 0 else '+'} {_term(monomial, abs(coefficient))}"
    return text


def _degree_then_text(monomial: Monomial) -> tuple[int, Monomial]:
    return -sum(power for _, power in monomial), monomial


def _term(monomial: Monomial, coefficient: int) -> str:
    if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
        return monomial[0][0]
    factors = [_factor(name, power) for name, power in monomial]
    number = [str(abs(coefficient))] if abs(coefficient) != 1 or not factors else []
    return ("-" if coefficient < 0 else "") + "*".join(number + factors)


def _factor(name: str, power: int) -> str:
    base = f"({name})" if "(" in name else name
    return base if power == 1 else f"{base}**{power}"


_ARITHMETIC: dict[type[ast.operator], Callable[[Polynomial, Polynomial], Polynomial]] = {
    ast.Add: add,
    ast.Sub: lambda left, right: add(left, right, -1),
    ast.Mult: multiply,
    ast.FloorDiv: floor,
    ast.Mod: remainder,
}
