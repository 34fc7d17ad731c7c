"""Generated Python functions over tensors, integers, lists, dicts and texts (hypothesis).

    program   ::= def program(t0, t1, n0, n1, l0, d0): statement* return (every variable)
    statement ::= assignment | mutation | if | for | while | try | with | inner function | print | assert
    expression of type int, tensor, list (of int), dict (str to int), text, or condition

Programs may raise (a missing key, a division by zero, shapes that do not fit): so does CPython, and that is compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from bytecap.testing.oracle import Arguments

DEPTH = 3
_HOLE = re.compile("<([a-z_]+)>")
_PARAMETERS = {"tensor": ["t0", "t1"], "int": ["n0", "n1"], "list": ["l0"], "dict": ["d0"], "text": ["s0"]}
_EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "int": (
        "<int> + <int>", "<int> - <int>", "<int> * <int>", "<int> // 2", "<int> % 3", "-<int>", "len(<list>)",
        "<tensor>.dim()", "<tensor>.numel()", "min(<int>, <int>)", "max([0, *<list>])", "sum(<list>)", "abs(<int>)",
        "(<int> if <condition> else <int>)", "<dict>.get(<key>, <int>)", "len(<text>)", "<list>.count(<int>)",
        "sum(v * <int> for v in <list>)", "int(<condition>)", "len([k for k in <dict> if k > <key>])",
        "(lambda a, b=2: a * b)(<int>)", "<dict>.setdefault(<key>, <int>)", "(<list> or [7])[-1]", "len(<dict>)",
    ),
    "tensor": (
        "<tensor> + <tensor>.sum()", "<tensor> * <int>", "1.5 - <tensor>", "torch.relu(<tensor>)", "<tensor>.sum()",
        "<tensor>.reshape(-1)", "<tensor>.clone()", "-<tensor>", "torch.where(<tensor> > 0, 1.0, 0.0)",
        "<tensor>.detach()",
        "(<tensor> if <condition> else <tensor>)", "sum([<tensor>.mean() for _ in <list>], <tensor>)",
        "<tensor>[..., :1]",
        "torch.stack([<tensor>.sum(), <tensor>.mean()])", "<tensor>.view(-1)[:2]", "torch.zeros(len(<list>), 2)",
        "[<tensor>, <tensor>][<int> > 1]", "<tensor>.unsqueeze(0)", "(<tensor>, <int>)[0]", "<tensor>.new_ones(2)",
    ),
    "list": (
        "[<int>, <int>]", "[]", "<list> + <list>", "<list>[<int>:<int>]", "sorted(<list>)", "list(reversed(<list>))",
        "[v + <int> for v in <list>]", "[v for v in <list> if v > <int>]", "list(range(<int> % 5))", "<list> * 2",
        "list(<dict>.values())", "[a * b for a, b in zip(<list>, <list>)]", "list(map(lambda v: v - 1, <list>))",
        "[*<list>, <int>]", "list(<tensor>.shape)", "[<int> for a in <list>[:2] for b in <list>[:2] if a < b]",
    ),
    "dict": (
        '{"a": <int>}', "<dict> | {<key>: <int>}", "{k: v + 1 for k, v in <dict>.items()}", "dict(<dict>)",
        "{<key>: <int>, **<dict>}", "dict(zip('ab', <list>))", "dict(sorted(<dict>.items()))", "<dict>.copy()",
    ),
    "text": (
        '"ab"', 'f"{<var_int>}-{<var_text>}"', "str(<int>)", "<text> + <text>", "<text>.upper()",
        'f"{<var_tensor>.shape}"',
        '", ".join(sorted(<dict>))', "repr(<list>)", 'f"{<var_int>:>4}|{<var_text>!r}"', "<text>[<int>:]",
        "str(<dict>)",
    ),
    "condition": (
        "<int> < <int>", "<int> == <int>", "<int> in <list>", "<key> in <dict>", "not <condition>", "<list>",
        "<condition> and <condition>", "<condition> or <condition>", "<tensor>.dim() > <int>", "<list> == <list>",
        "0 <= <int> < <int>", "<tensor> is <tensor>", "<text> != <text>", "any(v > <int> for v in <list>)",
    ),
    "key": ('"a"', '"b"', '"c"'),
}  # fmt: skip
_RISKY: dict[str, tuple[str, ...]] = {
    "int": ("<int> // <int>", "<int> % <int>", "<list>[<int>]", "<dict>[<key>]", "<list>.index(<int>)", "max(<list>)"),
    "tensor": (
        "<tensor> + <tensor>", "<tensor>[<int>]", "torch.cat([<tensor>, <tensor>], dim=<int>)", "<tensor>.t()",
        "torch.full((<int>, 2), 1.5)", "torch.stack([<tensor>, <tensor>])", "<tensor>.mean(-1)", "<tensor> @ <tensor>",
    ),
    "list": ("[<list>[<int>]]", "[1 // v for v in <list>]"),
    "dict": ('{<key>: <dict>[<key>]}',),
}  # fmt: skip
"""Forms that often raise."""

_STATEMENTS = (
    "<var_int> += <int>", "<var_list>.append(<int>)", "<var_list>[:1] = [<int>]", "<var_list> += <list>",
    "<var_list>.sort()", "<var_list>[<int>:] = <list>", "<var_dict>[<key>] = <int>", "<var_dict>.update(<dict>)",
    "<var_dict>.pop(<key>, None)", "<var_tensor> = <var_tensor> + <int>", "<var_tensor>.add_(<int>)",
    "<var_tensor>.view(-1)[:1] = <int>", "<var_tensor> *= <int>", 'print(<text>, <int>, sep="/")',
    "<var_int>, <var_int> = <int>, <int>", "(<var_int>, *<var_list>) = [<int>, *<list>]", "<var_list>.reverse()",
    "<var_list>.insert(<int>, <int>)", "l0 = <list>", "<var_list>.extend([v for v in <list>])", "l0 = <var_list>",
    "<var_int> = (<var_int> := <int>) * 2", "d0, <var_list> = <dict>, <list>", "t0, t1 = <tensor>, <tensor>",
    "<var_dict>.clear()", "<var_list>.pop() if <var_list> else None", "<var_dict> |= <dict>", "t0[...] = <int>",
    "assert <condition> or True, <text>",
)  # fmt: skip
_RISKY_STATEMENTS = (
    "<var_list>.pop()", "<var_list>[<int>] = <int>", "del <var_list>[<int>]", "del <var_dict>[<key>]",
    "assert <condition>, <text>", "(<var_int>, *<var_list>) = <list>", "<var_list>.remove(<int>)", "del <var_int>",
    "<var_tensor>[0] = <int>", "raise ValueError(<text>)",
)  # fmt: skip
_BLOCKS = (
    ("if <condition>:", "else:"),
    ("if <condition>:", "elif <condition>:", "else:"),
    ("for <new_int> in list(<list>):",),
    ("for <new_int>, <new_int> in enumerate(list(<list>)):", "else:"),
    ("for <new_int> in range(<int> % 4):",),
    ("try:", "except (IndexError, KeyError):"),
    ("try:", "except ZeroDivisionError as error:", "else:", "finally:"),
    ("try:", "finally:"),
    ("with torch.no_grad():",),
)


@dataclass
class _Writer:
    """The text under construction and the variables that may be read, by type."""

    draw: Callable[[Any], Any]
    lines: list[str] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=lambda: {k: list(v) for k, v in _PARAMETERS.items()})
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
        is_risky = kind in _RISKY and self.draw(st.integers(0, 15)) == 0
        forms = (_RISKY if is_risky else _EXPRESSIONS)[kind]
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
        if choice < 4:
            kind = self.draw(st.sampled_from(("int", "tensor", "list", "dict", "text")))
            text = self.expression(kind)
            self.lines.append(f"{pad}{self.fresh(kind)} = {text}")
        elif choice < 7 or indent > 3:
            forms = _RISKY_STATEMENTS if self.draw(st.integers(0, 11)) == 0 else _STATEMENTS
            self.lines.append(pad + self.fill(self.draw(st.sampled_from(forms)), 1))
        elif choice < 9:
            self.compound(indent)
        else:
            self.function(indent)

    def compound(self, indent: int) -> None:
        """if, for, try, with; loops may hold break and continue."""
        pad = "    " * indent
        for head in self.draw(st.sampled_from(_BLOCKS)):
            is_loop = head.startswith("for")
            before = {kind: list(names) for kind, names in self.variables.items()}
            self.lines.append(pad + self.fill(head, 1))
            self.block(indent + 1, 2)
            if is_loop and self.draw(st.booleans()):
                word = self.draw(st.sampled_from(("break", "continue")))
                self.lines.append(f"{pad}    if {self.expression('condition', 1)}: {word}")
            # What a branch defines may not exist after it.
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

    def source(self) -> str:
        """The whole function."""
        parameters = ", ".join(name for names in _PARAMETERS.values() for name in names)
        body = "\n".join(self.lines)
        kept = [name for names in self.variables.values() for name in names if f"\n    {name} = " in f"\n{body}"]
        kept += [name for names in _PARAMETERS.values() for name in names]
        return f"def program({parameters}):\n{body}\n    return {', '.join(dict.fromkeys(kept))}\n"


@st.composite
def sources(draw: Callable[[Any], Any]) -> str:
    """The text of a function `program`."""
    writer = _Writer(draw)
    for _ in range(draw(st.integers(2, 7))):
        writer.statement(1)
    return writer.source()


@st.composite
def arguments(draw: Callable[[Any], Any]) -> Callable[[], Arguments]:
    """A maker of equal arguments for a generated function."""
    small = st.integers(-2, 5)
    shapes = [draw(st.sampled_from(((2, 3), (3,), (2, 2), (1, 3)))) for _ in range(2)]
    same = draw(st.booleans())
    numbers = draw(st.tuples(small, small))
    items = draw(st.lists(small, max_size=4))
    text = draw(st.sampled_from(("", "x", "Long text")))
    pairs = draw(st.dictionaries(st.sampled_from("abc"), small, max_size=3))

    def make() -> Arguments:
        generator = torch.Generator().manual_seed(11)
        first, second = (torch.randn(shape, generator=generator) for shape in shapes)
        return (first, first if same else second, *numbers, list(items), dict(pairs), text), {}

    return make


def define(source: str) -> Callable[..., Any]:
    """The function of a generated text."""
    names: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<generated>", "exec"), names)
    return names["program"]
