"""A cursor over printed text, and the reader of size expressions inside it.

sum  ::= unary (("+" | "-" | "*" | "**" | "/" "/" | "%") unary)*
unary ::= "-"* (digits | name | ("Min" | "Max") "(" sum ("," sum)* ")" | "(" sum ")")
"""

from __future__ import annotations

import json
import re

from stagewire.errors import ParseError
from stagewire.notation import IDENTIFIER, RESERVED, TARGET

_SPACE = re.compile(r"[ \t\n]*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_INTEGER = re.compile(r"[0-9]+")
_OPERATOR = re.compile(r"\*\*|//|[-+*%]")
_COMMENT = re.compile(r"[ \t]*# ([^\n]*)")
_MAXIMUM_DEPTH = 100


class Scanner:
    """A position in a text; `take` functions move it past what they read and past the white space that follows."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.before_space = 0  # where the last token ended: comments are looked for from here
        self.comment_start = 0  # where the text of the last comment began
        self.skip_space()

    def error(self, message: str, at: int | None = None) -> ParseError:
        """A `ParseError` at this position, as line:column."""
        position = self.position if at is None else at
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        return ParseError(message, where=f"{line}:{column}")

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.before_space = self.position
        self.position = match.end()

    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def at(self, token: str) -> bool:
        return self.text.startswith(token, self.position)

    def at_word(self, word: str) -> bool:
        """True before `word` as a whole name: not before `word.more`."""
        match = TARGET.match(self.text, self.position)
        return match is not None and match.group() == word

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """The text that matches here, without moving."""
        match = pattern.match(self.text, self.position)
        return match.group() if match else None

    def advance(self, length: int) -> None:
        self.position += length
        self.skip_space()

    def accept(self, token: str) -> bool:
        found = self.at(token)
        if found:
            self.advance(len(token))
        return found

    def accept_word(self, word: str) -> bool:
        found = self.at_word(word)
        if found:
            self.advance(len(word))
        return found

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected {token!r}, found {self.preview()}")

    def preview(self) -> str:
        line = self.text[self.position : self.position + 24].split("\n")[0]
        return repr(line) if line else "the end of the text"

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        found = self.match(pattern)
        if not found:
            raise self.error(f"expected {what}, found {self.preview()}")
        self.advance(len(found))
        return found

    def take_string(self) -> str:
        """A JSON string."""
        start = self.position
        text = self.take(_STRING, "a string")
        try:
            return str(json.loads(text))
        except ValueError as error:
            raise self.error(f"not a JSON string: {error}", start) from None

    def take_name(self, pattern: re.Pattern[str], what: str) -> str:
        """A bare name that matches `pattern`, or a JSON string."""
        return self.take_string() if self.at('"') else self.take(pattern, what)

    def take_comment(self) -> str | None:
        """The text after `# ` on the line of the last token."""
        match = _COMMENT.match(self.text, self.before_space)
        if match is None:
            return None
        self.comment_start = match.start(1)
        self.position = match.end()
        self.skip_space()
        return match.group(1)

    def take_expression(self) -> str:
        """The text of one size expression, unchanged."""
        start = self.position
        self._sum(0)
        return self.text[start : self.before_space]

    def _sum(self, depth: int) -> None:
        self._unary(depth)
        while not self.line_ended() and (operator := self.match(_OPERATOR)) is not None:
            self.advance(len(operator))
            self._unary(depth)

    def line_ended(self) -> bool:
        """True where a new line began after the last token: its `%` or `-` is no operator, its word no output."""
        return "\n" in self.text[self.before_space : self.position]

    def _unary(self, depth: int) -> None:
        if depth > _MAXIMUM_DEPTH:
            raise self.error("the expression is nested too deeply")
        while self.accept("-"):
            pass
        if self.accept("("):
            self._sum(depth + 1)
            self.expect(")")
        elif (digits := self.match(_INTEGER)) is not None:
            self.advance(len(digits))
        else:
            self._name(depth)

    def _name(self, depth: int) -> None:
        start = self.position
        name = self.take(IDENTIFIER, "an expression")
        if name in RESERVED:
            raise self.error(f"{name} is no symbol", start)
        if name not in ("Min", "Max"):
            return
        self.expect("(")
        self._sum(depth + 1)
        while self.accept(","):
            self._sum(depth + 1)
        self.expect(")")
