"""Symbolic sizes as a program of integers that the native executor runs once for each new set of sizes (see sizes.h).

program ::= instruction*      instruction ::= op left right       operands are numbers of values; symbols come first
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from codegen.errors import MalformedLoop
from stagewire.expr import Expr

_NAMES = ("CONSTANT", "ADD", "MULTIPLY", "FLOOR_DIVIDE", "REMAINDER", "LEAST", "GREATEST")
OPS: dict[str, int] = {name: number for number, name in enumerate(_NAMES)}
"""As `enum SizeOp` in sizes.h."""

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "ADD", ast.Mult: "MULTIPLY", ast.FloorDiv: "FLOOR_DIVIDE", ast.Mod: "REMAINDER",
}  # fmt: skip


class SizeProgram:
    """Instructions for every expression that was asked for; equal parts are computed once.

    >>> program = SizeProgram(["n", "m"])
    >>> program.value(Expr("4*m*n")), program.instructions
    (4, [(0, 4, 0), (2, 2, 1), (2, 3, 0)])
    """

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = {name: number for number, name in enumerate(symbols)}
        self.instructions: list[tuple[int, int, int]] = []
        self._known: dict[object, int] = {}

    def value(self, expression: Expr) -> int:
        """The number of the value that `expression` has."""
        found = self._known.get(expression.text)
        if found is None:
            found = self._known[expression.text] = self._compute(ast.parse(expression.text, mode="eval").body)
        return found

    def _compute(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number):
                return self._emit("CONSTANT", number, 0)
            case ast.Name(id=name):
                if name not in self.symbols:
                    raise MalformedLoop(f"no input gives the symbol {name!r} a value; known: {', '.join(self.symbols)}")
                return self.symbols[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._emit("MULTIPLY", self._emit("CONSTANT", -1, 0), self._compute(operand))
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                minus = self._emit("MULTIPLY", self._emit("CONSTANT", -1, 0), self._compute(right))
                return self._emit("ADD", self._compute(left), minus)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)) if exponent > 0:
                base = value = self._compute(left)
                for _ in range(exponent - 1):
                    value = self._emit("MULTIPLY", value, base)
                return value
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._emit(_BINARY[type(op)], self._compute(left), self._compute(right))
            case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=[first, *rest]):
                value = self._compute(first)
                for other in rest:
                    value = self._emit("LEAST" if name == "Min" else "GREATEST", value, self._compute(other))
                return value
        raise MalformedLoop(f"{ast.unparse(node)!r} is no size")

    def _emit(self, op: str, left: int, right: int) -> int:
        instruction = (OPS[op], left, right)
        found = self._known.get(instruction)
        if found is None:
            found = self._known[instruction] = len(self.symbols) + len(self.instructions)
            self.instructions.append(instruction)
        return found
