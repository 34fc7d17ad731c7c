"""Generated Python functions over tensors, integers, containers, texts and objects (hypothesis).

    program   ::= def program(t0, t1, n0, n1, l0, d0, s0, u0, q0, b0): statement* return (every variable)
    statement ::= assignment | mutation | if | for | while | match | try | with | raise | return | print | assert
                | inner function or generator
    expression of type int, tensor, list (of int), dict (str to int), text, set, deque, Box, or condition

The forms are in `forms`; the classes, generators and context managers that programs use are in `prelude`.

Programs may raise (a missing key, a division by zero, shapes that do not fit): so does CPython, and that is compared.
"""

from __future__ import annotations

import copy
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st

from bytecap.testing.forms import (
    BLOCKS,
    EXPRESSIONS,
    PARAMETERS,
    PATTERNS,
    RISKY,
    RISKY_STATEMENTS,
    STATEMENTS,
    SUSPENSIONS,
)
from bytecap.testing.oracle import Arguments
from bytecap.testing.prelude import PRELUDE

DEPTH = 3
MATCHED = ("list", "dict", "box", "int", "text")
_HOLE = re.compile("<([a-z_]+)>")


@dataclass
class _Writer:
    """The text under construction and the variables that may be read, by type; suspends: it is a generator's."""

    draw: Callable[[Any], Any]
    suspends: bool = False
    lines: list[str] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=lambda: {k: list(v) for k, v in PARAMETERS.items()})
    counter: int = 0

    def fresh(self, kind: str) -> str:
        """A new variable."""
        self.counter += 1
        name = f"{kind[0]}{self.counter + 1}"
        self.variables[kind].append(name)
        return name

    def expression(self, kind: str, depth: int = DEPTH) -> str:
        """An expression of a type."""
        known = self.variables.get(kind, [])
        if known and (depth == 0 or self.draw(st.integers(0, 2)) == 0):
            return self.draw(st.sampled_from(known))
        if depth == 0:
            return {"int": str(self.draw(st.integers(-2, 5))), "text": '"x"', "condition": "True"}.get(kind, '"a"')
        is_risky = kind in RISKY and self.draw(st.integers(0, 39)) == 0
        forms = (RISKY if is_risky else EXPRESSIONS)[kind]
        return f"({self.fill(self.draw(st.sampled_from(forms)), depth - 1)})"

    def fill(self, template: str, depth: int) -> str:
        """A template with its holes filled."""
        return _HOLE.sub(lambda match: self.hole(match[1], depth), template)

    def hole(self, hole: str, depth: int) -> str:
        """One hole: an expression, a known variable, or a new one."""
        if hole.startswith("var_"):
            return self.draw(st.sampled_from(self.variables[hole[4:]]))
        if hole.startswith("new_"):
            return self.fresh(hole[4:])
        return self.expression(hole, depth)

    def block(self, indent: int, size: int) -> None:
        """Up to `size` statements."""
        for _ in range(self.draw(st.integers(1, size))):
            self.statement(indent)

    def statement(self, indent: int) -> None:
        """One statement; blocks nest three deep."""
        pad = "    " * indent
        choice = self.draw(st.integers(0, 9))
        if self.suspends and self.draw(st.integers(0, 3)) == 0:
            self.lines.append(pad + self.fill(self.draw(st.sampled_from(SUSPENSIONS)), 1))
        elif choice < 4:
            kind = self.draw(st.sampled_from(tuple(PARAMETERS)))
            text = self.expression(kind)
            self.lines.append(f"{pad}{self.fresh(kind)} = {text}")
        elif choice < 7 or indent > 3:
            forms = RISKY_STATEMENTS if self.draw(st.integers(0, 24)) == 0 else STATEMENTS
            self.lines.append(pad + self.fill(self.draw(st.sampled_from(forms)), 1))
        elif choice < 9:
            self.compound(indent)
        else:
            self.draw(st.sampled_from((self.function, self.generator, self.match)))(indent)

    def compound(self, indent: int) -> None:
        """if, for, try, with; loops may hold break and continue."""
        pad = "    " * indent
        for head in self.draw(st.sampled_from(BLOCKS)):
            is_loop = head.startswith(("for", "while"))
            before = {kind: list(names) for kind, names in self.variables.items()}
            self.lines.append(pad + self.fill(head, 1))
            self.block(indent + 1, 2)
            if is_loop and self.draw(st.booleans()):
                word = self.draw(st.sampled_from(("break", "continue")))
                self.lines.append(f"{pad}    if {self.expression('condition', 1)}: {word}")
            # What a branch defines may not exist after it.
            self.variables = before

    def match(self, indent: int) -> None:
        """match, with up to two patterns before the one that takes everything."""
        pad = "    " * indent
        self.lines.append(f"{pad}match {self.expression(self.draw(st.sampled_from(MATCHED)), 1)}:")
        for pattern in (*self.draw(st.lists(st.sampled_from(PATTERNS), max_size=2)), "_"):
            before = {kind: list(names) for kind, names in self.variables.items()}
            self.lines.append(f"{pad}    case {self.fill(pattern, 0)}:")
            self.block(indent + 2, 1)
            self.variables = before

    def function(self, indent: int) -> None:
        """An inner function that reads and changes variables around it, and its call."""
        pad = "    " * indent
        kind = self.draw(st.sampled_from(("int", "tensor", "list")))
        name = f"f{self.counter}"
        self.lines.append(f"{pad}def {name}(p, q={self.expression('int', 1)}, *rest, **named):")
        outer = self.draw(st.sampled_from(self.variables["int"]))
        self.lines.append(f"{pad}    nonlocal {outer}")
        self.lines.append(f"{pad}    {outer} = p + q + len(rest) + len(named)")
        self.lines.append(f"{pad}    return {self.expression(kind, 2)}")
        forms = ("<int>", "<int>, <int>", "<int>, *<list>", "q=<int>, p=<int>", "1, 2, <int>, z=3")
        arguments = self.draw(st.sampled_from(forms))
        self.lines.append(f"{pad}{self.fresh(kind)} = {name}({self.fill(arguments, 1)})")

    def generator(self, indent: int) -> None:
        """An inner generator that changes a variable around it, consumed in part or whole."""
        pad = "    " * indent
        name = f"g{self.counter}"
        outer = self.draw(st.sampled_from(self.variables["int"]))
        forms = ("list({}(<int>))", "[next({}(<int>))]", "[v for v in {}(<int>) if v]", "[*{}(1), <int>]")
        use = self.draw(st.sampled_from(forms)).format(name)
        self.lines += [
            f"{pad}def {name}(p):",
            f"{pad}    nonlocal {outer}",
            f"{pad}    try:",
            f"{pad}        for index in range(3):",
            f"{pad}            {outer} = {self.expression('int', 1)}",
            f"{pad}            yield {outer} + p",
            f"{pad}            {self.fill('if <condition>: return', 1)}",
            f"{pad}    finally:",
            f"{pad}        log.append(p)",
        ]
        self.lines.append(f"{pad}{self.fresh('list')} = {self.fill(use, 1)}")

    def source(self) -> str:
        """The whole function."""
        parameters = ", ".join(name for names in PARAMETERS.values() for name in names)
        body = "\n".join(self.lines)
        kept = ["log"]
        kept += [name for names in self.variables.values() for name in names if f"\n    {name} = " in f"\n{body}"]
        kept += [name for names in PARAMETERS.values() for name in names]
        start = "    log, walk, ticks = [], counting(5), iter(range(6))\n"
        start += "    yield log\n" * self.suspends
        return f"def program({parameters}):\n{start}{body}\n    return {', '.join(dict.fromkeys(kept))}\n"


@st.composite
def sources(draw: Callable[[Any], Any], suspends: bool = False) -> str:
    """The text of a function `program`. suspends: of a generator function."""
    writer = _Writer(draw, suspends)
    for _ in range(draw(st.integers(2, 7))):
        writer.statement(1)
    source = writer.source()
    assume(_is_python(source))
    return source


def _is_python(source: str) -> bool:
    """Whether the forms may stand where they were put: `:=` may not in what a comprehension goes over."""
    try:
        compile(source, "<generated>", "exec", dont_inherit=True)
    except SyntaxError as error:
        if "assignment expression" in str(error):
            return False
        raise
    return True


@st.composite
def arguments(draw: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Arguments]:
    """A maker of equal arguments for a generated function, which it is given."""
    small = st.integers(-2, 5)
    shapes = [draw(st.sampled_from(((2, 3), (3,), (2, 2), (1, 3)))) for _ in range(2)]
    same = draw(st.booleans())
    numbers = draw(st.tuples(small, small))
    items = draw(st.lists(small, max_size=4))
    text = draw(st.sampled_from(("", "x", "Long text")))
    pairs = draw(st.dictionaries(st.sampled_from("abc"), small, max_size=3))

    members = draw(st.sets(small, max_size=3))
    is_shared = draw(st.booleans())

    def make(function: Callable[..., Any]) -> Arguments:
        box = function.__globals__["SubBox" if numbers[0] > 2 else "Box"](numbers[1], items[:2])
        queue = deque(items[1:], maxlen=5 if is_shared else None)
        listed = list(items)
        if is_shared:
            box.items = listed
        generator = torch.Generator().manual_seed(11)
        first, second = (torch.randn(shape, generator=generator) for shape in shapes)
        return (first, first if same else second, *numbers, listed, dict(pairs), text, set(members), queue, box), {}

    return make


def moves() -> st.SearchStrategy[list[tuple[str, Any]]]:
    """What is done with a generator, in order: (method, argument)."""
    sent = st.tuples(st.just("send"), st.sampled_from((None, None, 2, 5)))
    thrown = st.tuples(st.just("throw"), st.sampled_from((IndexError(3), ZeroDivisionError("z"), ValueError(4))))
    closed = st.tuples(st.just("close"), st.none())
    return st.lists(st.one_of(sent, sent, sent, sent, thrown, closed), min_size=3, max_size=14)


def driven(function: Callable[..., Any], moves: list[tuple[str, Any]]) -> Callable[..., Any]:
    """A function that makes a generator and does this with it; it gives what each step gave or raised, and where."""

    def drive(*args: Any, **kwargs: Any) -> list[Any]:
        generator, seen = function(*args, **kwargs), []
        next_is_first = True
        for method, argument in moves:
            try:
                given = copy.copy(argument) if method == "throw" else None if next_is_first else argument
                next_is_first &= method == "throw"
                seen.append(generator.close() if method == "close" else getattr(generator, method)(given))
            except Exception as error:
                rows = traceback.extract_tb(error.__traceback__)
                seen.append((type(error), error.args, [(row.name, row.lineno) for row in rows[1:]]))
        return seen

    return drive


def define(source: str) -> Callable[..., Any]:
    """The function of a generated text."""
    module = sys.modules["generated_program"] = ModuleType("generated_program")  # dataclasses look for it there
    exec(compile(PRELUDE + source, "<generated>", "exec", dont_inherit=True), vars(module))
    return module.program
