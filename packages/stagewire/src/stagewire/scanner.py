"""A cursor over printed text: tokens, and the extent of size expressions.

sum  ::= unary (("+" | "-" | "*" | "**" | "/" "/" | "%") unary)*
unary ::= "-"* (digits | name | ("Min" | "Max") "(" sum ("," sum)* ")" | "(" sum ")")
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from stagewire.errors import ParseError

BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
DEVICE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(:[0-9]+)?")
TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INTEGER = re.compile(r"-?[0-9]+")
_SPACE = re.compile(r"[ \t\n]*")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_COMMENT = re.compile(r"[ \t]*# ([^\n]*)")
LEAD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\(?|\.\.\.|.")
TOKEN = re.compile(r"\w+|\.\.\.|//|[^\w\s]")
_OPENING = re.compile(r"-|\(|(?:Min|Max)[ \t\n]*\(")
_OPERAND = re.compile(r"[0-9]+|(?!(?:None|True|False|inf|nan|Expr|Min|Max)\b)[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r"\*\*|//|[-+*%]")
_MAXIMUM_DEPTH = 100


class Fault(Exception):
    """What is wrong at a position. expected: the tokens of which one had to stand there, if that is all."""

    def __init__(self, position: int, message: str = "", expected: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.position, self.expected = position, expected


class Scanner:
    """A position in a text; what reads moves it past what it read and past the white space that follows."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.possible = (-1, "")  # a position, and what could also have stood there
        self.move(0)

    def move(self, end: int) -> None:
        """To the token after `end`, where the last one ended."""
        self.end = end
        self.position = _SPACE.match(self.text, end).end()  # type: ignore[union-attr] # matches everywhere

    def error(self, fault: Fault) -> ParseError:
        """A fault as users see it, at line:column."""
        line = self.text.count("\n", 0, fault.position) + 1
        column = fault.position - self.text.rfind("\n", 0, fault.position)
        message = str(fault)
        if fault.expected:
            rest = self.text[fault.position : fault.position + 24].split("\n")[0]
            message = f"expected {' or '.join(dict.fromkeys(fault.expected))}, found {rest or 'the end of the text'!r}"
        return ParseError(message, where=f"{line}:{column}")

    def missing(self, *expected: str) -> Fault:
        """That none of `expected` stands here."""
        also = self.possible[1:] if self.possible[0] == self.position else ()
        return Fault(self.position, expected=(*also, *expected))

    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def at(self, token: str) -> bool:
        """Whether the token stands here; a word as a whole name, not before `word.more`."""
        if not self.text.startswith(token, self.position):
            return False
        return not token.isidentifier() or TARGET.match(self.text, self.position).group() == token  # type: ignore

    def line_ended(self) -> bool:
        """True where a new line began after the last token: its `%` or `-` is no operator, its word no output."""
        return "\n" in self.text[self.end : self.position]

    def lead(self) -> str:
        """The token that stands here; with a name the parenthesis that follows at once."""
        found = LEAD.match(self.text, self.position)
        return found.group() if found else ""

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What stands here, past which this moves, if it is of the pattern."""
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.move(found.end())
        return found

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        found = self.match(pattern)
        if found is None:
            raise self.missing(what)
        return found.group()

    def accept(self, token: str) -> bool:
        found = self.at(token)
        if found:
            self.move(self.position + len(token))
        return found

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.missing(token if token.isidentifier() else repr(token))

    def items(self) -> Iterator[None]:
        """Once for each of the items between commas that stand here, up to a closing bracket; a comma may end them."""
        while self.text[self.position : self.position + 1] not in (")", "]", "}", ";"):
            yield
            if not self.accept(","):
                self.possible = (self.position, repr(","))
                return

    def take_string(self) -> str:
        """A JSON string."""
        start = self.position
        text = self.take(STRING, "a string")
        try:
            return str(json.loads(text))
        except ValueError as error:
            raise Fault(start, f"not a JSON string: {error}") from None

    def take_name(self, pattern: re.Pattern[str], what: str) -> str:
        """A bare name that matches `pattern`, or a JSON string."""
        return self.take_string() if self.at('"') else self.take(pattern, what)

    def take_comment(self) -> tuple[int, str] | None:
        """The text after `# ` on the line of the last token, and where it begins."""
        found = _COMMENT.match(self.text, self.end)
        if found is None:
            return None
        self.move(found.end())
        return found.start(1), found.group(1)

    def take_expression(self) -> str:
        """The text of one size expression, unchanged."""
        start = self.position
        brackets: list[str] = []
        while True:
            while (opening := self.match(_OPENING)) is not None:
                brackets += () if opening.group() == "-" else (opening.group(),)
            if len(brackets) > _MAXIMUM_DEPTH:
                raise Fault(self.position, "the expression is nested too deeply")
            self.take(_OPERAND, "an expression")
            while brackets and self.accept(")"):
                brackets.pop()
            if not self.line_ended() and self.match(_OPERATOR):
                continue
            if not (brackets and brackets[-1] != "(" and self.accept(",")):
                break
        if brackets:
            raise self.missing(repr(")"))
        return self.text[start : self.end]


def is_expression(text: str) -> bool:
    """Whether the text is one size expression, and nothing else."""
    scanner = Scanner(text)
    try:
        return scanner.take_expression() == text
    except Fault:
        return False


def quote(text: str) -> str:
    """A JSON string of ASCII characters."""
    return json.dumps(text)


def bare(text: str, pattern: re.Pattern[str] = BARE) -> str:
    """`text` itself where it matches `pattern`, else quoted."""
    return text if pattern.fullmatch(text) else quote(text)
