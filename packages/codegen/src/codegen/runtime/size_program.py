"""Symbolic sizes as a program of integers that the native executor runs once for each new set of sizes (see sizes.h).

program ::= instruction*      instruction ::= op left right       operands are numbers of values; symbols come first
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.errors import MalformedLoop
from stagewire.expr import Expr, steps_of

_NAMES = ("CONSTANT", "ADD", "MULTIPLY", "FLOOR_DIVIDE", "REMAINDER", "LEAST", "GREATEST")
OPS: dict[str, int] = {name: number for number, name in enumerate(_NAMES)}
"""As `enum SizeOp` in sizes.h."""

_OPERATORS = {"+": "ADD", "*": "MULTIPLY", "//": "FLOOR_DIVIDE", "%": "REMAINDER", "Min": "LEAST", "Max": "GREATEST"}


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
            found = self._known[expression.text] = self._compute(expression)
        return found

    def _compute(self, expression: Expr) -> int:
        values: list[int] = []
        for kind, operand in steps_of(expression):
            if isinstance(operand, int):
                values.append(self._emit("CONSTANT", operand, 0))
            elif operand:
                if operand not in self.symbols:
                    known = ", ".join(self.symbols)
                    raise MalformedLoop(f"no input gives the symbol {operand!r} a value; known: {known}")
                values.append(self.symbols[operand])
            else:
                right = values.pop()
                if kind == "-":
                    kind, right = "+", self._emit("MULTIPLY", self._emit("CONSTANT", -1, 0), right)
                values[-1] = self._emit(_OPERATORS[kind], values[-1], right)
        (value,) = values
        return value

    def _emit(self, op: str, left: int, right: int) -> int:
        instruction = (OPS[op], left, right)
        found = self._known.get(instruction)
        if found is None:
            found = self._known[instruction] = len(self.symbols) + len(self.instructions)
            self.instructions.append(instruction)
        return found
