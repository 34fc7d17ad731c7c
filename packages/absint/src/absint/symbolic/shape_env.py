"""`ShapeEnv`: what is known of the size symbols of one capture, and what was assumed of them.

    env = ShapeEnv()
    n = env.create("s0", hint=8)            # 2 <= s0: sizes 0 and 1 are fixed, as broadcasting asks about them
    bool(n > 1), env.relations              # (True, []): follows from the range
    bool(n % 4 == 0), env.relations         # (True, [s0 % 4 == 0]): decided by the hint, and written down

A question about sizes is answered, in this order, by: arithmetic on the canonical form, the ranges of the symbols,
earlier answers, the hint. Only the last assumes something: it becomes a relation, with the user's line.

A symbol may stand for what data decides (`create_unbacked`: how many elements a mask selects). It has no hint; a
question that the ranges do not answer raises `DataDependentError`. While `generic` is set, as it is for type rules,
such a symbol is taken to be at least 2 and to differ from everything that it is not known to be equal to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

from absint.errors import DataDependentError, SpecializedSize, UndecidedSize
from absint.symbolic.questions import Questions
from stagewire.bounds import Bounds, Ranges, bounds_of, implied
from stagewire.capture import Relation
from stagewire.expr import Dim, dim_of, polynomial_of
from stagewire.graph import SourceLine
from stagewire.polynomial import RULES, ZERO, Atom, Polynomial, cached, constant, largest, smallest, symbol

# No tensor is longer: what a slice without an end is compared with is larger.
_MOST_ELEMENTS = 1 << 60
# What symbols without a hint are worth: no size of a program.
_NOBODYS_SIZE = 1_000_003


@dataclass
class SymbolRecord:
    """A symbol: the value it had at capture, its range, and what it is called where it must stay free.

    marked: the user's name for a size that must not be fixed (`mark_dynamic`), else None. lower: None where it may
    be any number.
    """

    name: str
    hint: int
    lower: int | None = 2
    upper: int | None = None
    marked: str | None = None


class ShapeEnv:
    """Symbols with ranges and hints, facts, and the relations that were assumed.

    whole: whether what needs a size as a number fixes it, though the graph might end in front of it instead.

    line: where the evaluated program is, for the relations. strict: assume nothing; what does not follow from the
    ranges and the facts raises `UndecidedSize`. questions: answers for float symbols.
    """

    def __init__(self, line: Callable[[], SourceLine | None] = lambda: None, *, strict: bool = False) -> None:
        self.line = line
        self.strict = strict
        self.symbols: dict[str, SymbolRecord] = {}
        self.hints: dict[str, Any] = {}  # of sizes ints, of float symbols floats
        self.relations: list[Relation] = []
        self.generic = False
        self.whole = True
        self.questions = Questions()
        self.unbacked: dict[str, Polynomial] = {}  # what data decides -> as type rules see it
        self.taken_for_different: list[Polynomial] = []  # what was asked of those, in order: `value == 0`
        self.compared: dict[tuple[str, Polynomial, Polynomial | int], bool] = {}  # answers about two sizes
        # What was made of shapes and layouts (`layout_key`), beside what the keys stand for.
        self.row_major: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.wrappers: dict[Any, tuple[Callable[[], Any], Any]] = {}
        self.age = 0  # how often a symbol was found to be something else
        self._meanings: dict[str, Polynomial] = {}  # of symbols
        self._floors: dict[Atom, tuple[int, Polynomial]] = {}  # of multiples of other atoms, where they are no operands
        self._facts: list[Polynomial] = []  # known to be >= 0
        self._nonzero: set[Polynomial] = set()
        self._zero: set[Polynomial] = set()
        self._answers: dict[tuple[str, Polynomial], bool] = {}
        self._ranges: dict[frozenset[str], Ranges] = {}
        self._quotients: dict[tuple[Polynomial, Polynomial], Polynomial] = {}
        self._reduced: dict[Polynomial, Polynomial] = {}
        self.sizes: dict[Polynomial, Any] = {}  # what polynomials are as Python numbers, of this age
        self.kept_sizes: dict[Polynomial, Any] = {}  # the same by what they read, of any age

    # -- symbols

    def create(
        self, name: str, hint: int, *, lower: int = 2, upper: int | None = None, marked: str | None = None
    ) -> Polynomial:
        """A new symbol in lower..upper that is worth `hint` now."""
        self.symbols[name] = SymbolRecord(name, hint, lower, upper, marked)
        self.hints[name] = hint
        return symbol(name)

    def create_unbacked(self, name: str, *, lower: int | None = 0, upper: int | None = None) -> Polynomial:
        """A new symbol for a number that data decides."""
        generic = f"{name}~"
        for one, least in ((name, lower), (generic, 2)):
            self.symbols[one] = SymbolRecord(one, _NOBODYS_SIZE + len(self.unbacked), least, upper)
            self.hints[one] = self.symbols[one].hint
        self.unbacked[name] = symbol(generic)
        return symbol(name)

    def hint(self, value: Polynomial) -> int:
        """What `value` is worth now."""
        number = value.number
        return value.evaluate(self.hints) if number is None else number

    def reduce(self, value: Polynomial) -> Polynomial:
        """`value` with all symbols replaced that were found to be equal to something else, and multiples of
        floors where they are terms of it."""
        if not self._floors and (not self._meanings or value.symbols.isdisjoint(self._meanings)):
            return value
        known = self._reduced.get(value)
        if known is None:
            known = self._reduced[value] = value.substitute(self._meanings).rewritten(self._floors)
        return known

    # -- arithmetic that knows the ranges

    def divide(self, left: Polynomial, right: Polynomial) -> Polynomial:
        """`left // right`; what lies within one divisor is 0."""
        known = self._quotients.get((left, right))
        if known is None:
            known = left // right
            if known.number is None and self._sign_by_bounds(left) and self._sign_by_bounds(right - left - 1):
                known = ZERO
            self._quotients[left, right] = known
        return known

    def remainder(self, left: Polynomial, right: Polynomial) -> Polynomial:
        """`left % right`."""
        return left - right * self.divide(left, right)

    def smallest(self, left: Polynomial, right: Polynomial) -> Polynomial:
        """Min(left, right), one of them where that is known."""
        known = self.known_nonnegative(left - right)
        return smallest(left, right) if known is None else right if known else left

    def largest(self, left: Polynomial, right: Polynomial) -> Polynomial:
        """Max(left, right), one of them where that is known."""
        known = self.known_nonnegative(left - right)
        return largest(left, right) if known is None else left if known else right

    # -- questions

    def is_nonnegative(self, value: Polynomial) -> bool:
        """Is `value >= 0`; may assume it."""
        value = _lowest_terms(self.reduce(value))
        answer = self._answer(">=", value)
        if answer is None and self.is_unbacked(value):
            return self._generic_sign(value)
        if answer is None:
            answer = self.hint(value) >= 0
            self._assume_sign(value if answer else -value - 1)
        return answer

    def is_zero(self, value: Polynomial) -> bool:
        """Is `value == 0`; may assume it."""
        value = _without_factor(self.reduce(value))
        answer = self._answer("==", value)
        if answer is None and self.is_unbacked(value):
            return self._generic_zero(value)
        if answer is None:
            answer = self.hint(value) == 0
            self._assume_zero(value) if answer else self._assume_nonzero(value)
        return answer

    def known_nonnegative(self, value: Polynomial) -> bool | None:
        """Whether `value >= 0`, None where that is not known; assumes nothing."""
        return self._answer(">=", _lowest_terms(self.reduce(value)))

    def known_zero(self, value: Polynomial) -> bool | None:
        """Whether `value == 0`, None where that is not known; assumes nothing."""
        return self._answer("==", _without_factor(self.reduce(value)))

    def known(self, relation: Relation) -> bool | None:
        """Whether a relation holds, None where that is not known; assumes nothing."""
        operator, value = _against_zero(relation)
        if operator == ">=":
            return self.known_nonnegative(value)
        known = self.known_zero(value)
        return known if operator == "==" or known is None else not known

    def specialize(self, value: Polynomial) -> int:
        """The number that `value` is now; assumes that it stays."""
        value = self.reduce(value)
        number = value.number
        if number is not None:
            return number
        if self.is_unbacked(value):
            raise DataDependentError(f"the number {value} depends on data")
        number = self.hint(value)
        if not self.known_zero(value - number):
            self._assume_zero(value - number)
        return number

    def is_unbacked(self, value: Polynomial) -> bool:
        """Whether data decides `value`."""
        return bool(self.unbacked) and not value.symbols.isdisjoint(self.unbacked)

    def _generic_sign(self, value: Polynomial) -> bool:
        answer = self._sign_by_bounds(value.substitute(self.unbacked)) if self.generic else None
        if answer is None:
            raise DataDependentError(f"whether {value} >= 0 depends on data")
        return answer

    def _generic_zero(self, value: Polynomial) -> bool:
        if not self.generic:
            raise DataDependentError(f"whether {value} == 0 depends on data")
        self.taken_for_different.append(value)
        return False

    def _answer(self, operator: str, value: Polynomial) -> bool | None:
        """Whether `value operator 0`, ">=" or "==", of which an answer once found stays."""
        number = value.number
        if number is not None:
            return number >= 0 if operator == ">=" else number == 0
        answer = self._answers.get((operator, value))
        if answer is None:
            answer = self._find_sign(value) if operator == ">=" else self._find_zero(value)
            if answer is not None:
                self._answers[operator, value] = answer
        return answer

    def _sign_by_bounds(self, value: Polynomial) -> bool | None:
        low, high = self.bounds(value)
        if low is not None and low >= 0:
            return True
        return False if high is not None and high < 0 else None

    def _find_sign(self, value: Polynomial) -> bool | None:
        answer = self._sign_by_bounds(value)
        if answer is not None:
            return answer
        for fact in (*self._facts, *implied(value, self.bounds)):
            if self._sign_by_bounds(value - fact):
                return True
            if self._sign_by_bounds(-value - 1 - fact):
                return False
        return None

    def _find_zero(self, value: Polynomial) -> bool | None:
        low, high = self.bounds(value)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        if value in self._zero or -value in self._zero:
            return True
        if value in self._nonzero or -value in self._nonzero:
            return False
        if value.offset % _factor(value) != 0:  # 4*n + 2*m + 1 is odd
            return False
        positive, negative = self._answer(">=", value - 1), self._answer(">=", -value - 1)
        if positive or negative:
            return False
        return True if positive is False and negative is False else None

    def bounds(self, value: Polynomial) -> Bounds:
        """(least, greatest) value, None where there is no bound."""
        ranges = self._ranges.get(value.symbols)
        if ranges is None:
            ranges = self._ranges[value.symbols] = tuple([(name, self._range(name)) for name in value.symbols])
        return bounds_of(value, ranges)

    def _range(self, name: str) -> Bounds:
        record = self.symbols[name]
        return record.lower, _MOST_ELEMENTS if record.upper is None else record.upper

    # -- assumptions

    def assume(self, relation: Relation) -> None:
        """Take a relation of a document as known."""
        operator, value = _against_zero(relation)
        learn = {"==": self._learn_zero, "!=": self._learn_nonzero, ">=": self._learn_sign}
        learn[operator](self.reduce(value))

    def _refuse(self, value: Polynomial, operator: str) -> None:
        if self.strict and value.number is None:
            raise UndecidedSize(f"whether {value} {operator} 0 holds is not known of the sizes")

    def _assume_sign(self, value: Polynomial) -> None:
        self._refuse(value, ">=")
        self._note(">=", value)
        self._learn_sign(value)

    def _assume_zero(self, value: Polynomial) -> None:
        self._refuse(value, "==")
        for name in value.symbols:
            self._keep_free(name, value)
        self._note("==", value)
        self._learn_zero(value)

    def _assume_nonzero(self, value: Polynomial) -> None:
        self._refuse(value, "!=")
        for side in (value, -value):
            if self.known_nonnegative(side):  # then it says more of the ranges
                self._assume_sign(_lowest_terms(side - 1))
                return
        self._note("!=", value)
        self._learn_nonzero(value)

    def _keep_free(self, name: str, value: Polynomial) -> None:
        marked = self.symbols[name].marked
        is_fixed = value.symbols == {name} and not any(atom.operands for atom in value.atoms())
        if marked is not None and is_fixed:  # that it is even, or equal to another, leaves it free
            relation = _relation("==", value, None)
            sides = [
                re.sub(rf"\b{name}\b", marked.replace("\\", r"\\"), str(side))
                for side in (relation.left, relation.right)
            ]
            raise SpecializedSize(
                f"{marked} was marked as dynamic, and this line needs {' == '.join(sides)}",
                where=self.line(),
            )

    def _note(self, operator: str, value: Polynomial) -> None:
        self.relations.append(_relation(operator, value, self.line()))

    def _learn_sign(self, value: Polynomial) -> None:
        if -value in self._facts and value not in self._zero and -value not in self._zero:
            self._learn_zero(value)
            return
        self._facts.append(value)
        self._narrow(value)

    def _narrow(self, value: Polynomial) -> None:
        """`s - c >= 0` and `c - s >= 0` are ranges."""
        if len(value.symbols) != 1:
            return
        (name,) = value.symbols
        slope = value - value.offset
        record = self.symbols[name]
        if slope == symbol(name):
            record.lower = -value.offset if record.lower is None else max(record.lower, -value.offset)
        elif slope == -symbol(name):
            record.upper = value.offset if record.upper is None else min(record.upper, value.offset)
        self._ranges.clear()

    def _learn_nonzero(self, value: Polynomial) -> None:
        self._nonzero.add(value)
        if len(value.symbols) == 1:
            (name,) = value.symbols
            if value - value.offset == symbol(name) and -value.offset == self.symbols[name].lower:
                self._learn_sign(value - 1)

    def _learn_zero(self, value: Polynomial) -> None:
        solved = _solve(value)
        if solved is None:
            self._zero.add(value)
            self._facts += [value, -value]
            self._learn_floor(value)
            return
        name, meaning = solved
        self._meanings = {known: old.substitute({name: meaning}) for known, old in self._meanings.items()}
        self._meanings[name] = meaning
        self._floors.clear()  # they read otherwise now; that they are equal is among the facts
        self.age += 1
        self._learn_range(name, meaning)
        self._facts = [fact.substitute(self._meanings) for fact in self._facts]
        self._nonzero = {gap.substitute(self._meanings) for gap in self._nonzero}
        self._zero = {gap.substitute(self._meanings) for gap in self._zero}
        self._reduced.clear()
        self.sizes.clear()

    def _learn_floor(self, value: Polynomial) -> None:
        """n//2 - 2*(n//2//2) == 0: what reads 2*(n//2//2) reads n//2 from now on, so that equal sizes read alike.

        The longest text goes. As an operand of another atom it stays as it is.
        """
        longest = max(value.atoms(), key=len, default=None)
        if longest is None or not longest.operands or longest in self._floors:
            return
        count = value.terms.get(((longest, 1),), 0)
        rest = value - Polynomial({((longest, 1),): count})
        if count and all(len(one) < len(longest) for one in rest.atoms()):
            self._floors[longest] = abs(count), rest if count < 0 else -rest
            self._reduced.clear()
            self.sizes.clear()
            self.age += 1

    def _learn_range(self, name: str, meaning: Polynomial) -> None:
        """What was known of the range of a symbol is known of what stands for it."""
        record = self.symbols[name]
        facts = [] if record.lower is None else [meaning - record.lower]
        for fact in (*facts, *([] if record.upper is None else [constant(record.upper) - meaning])):
            if fact.number is None:
                self._learn_sign(fact)


def remainder(left: Polynomial, right: Polynomial) -> Polynomial:
    """`left % right` as facts are known of it: without an atom of its own."""
    return left - right * (left // right)


_IN_FLOORS = {**RULES, "%": remainder}


@cached
def from_dim(dim: Dim) -> Polynomial:
    """The polynomial of a document's size, its remainders by floors."""
    value = polynomial_of(dim)
    return value.substitute({}, _IN_FLOORS) if "%" in value.text else value


def _relation(operator: str, value: Polynomial, line: SourceLine | None) -> Relation:
    """`value operator 0` with the negative terms on the right; divisibility as `a % b == 0`."""
    for atom in value.atoms():
        if operator in ("==", "!=") and atom.operator == "//":
            left, right = atom.operands
            rest = remainder(left, right)
            if right.number is not None and value in (rest, -rest):
                return Relation(dim_of(left % right), operator, 0, line)
    left = Polynomial({key: count for key, count in value.terms.items() if count > 0})
    right = Polynomial({key: -count for key, count in value.terms.items() if count < 0})
    return Relation(dim_of(left), operator, dim_of(right), line)  # type: ignore[arg-type]


def _against_zero(relation: Relation) -> tuple[str, Polynomial]:
    """The same as `value == 0`, `value != 0` or `value >= 0`."""
    gap = from_dim(relation.left) - from_dim(relation.right)
    match relation.operator:
        case "==" | "!=" | ">=" as operator:
            return operator, gap
        case ">":
            return ">=", gap - 1
        case "<=":
            return ">=", -gap
        case "<":
            return ">=", -gap - 1


def _factor(value: Polynomial) -> int:
    """The greatest common divisor of the coefficients of symbols; 1 for numbers."""
    return gcd(*[count for key, count in value.terms.items() if key]) or 1


@cached
def _lowest_terms(value: Polynomial) -> Polynomial:
    """A polynomial that is >= 0 for the same integers: 8*n - 3 >= 0 is n - 1 >= 0, n//4 - 2 >= 0 is n - 8 >= 0."""
    factor = _factor(value)
    if factor != 1:
        value = value - value.offset % factor
        value = value.over(factor)
    variable = value - value.offset
    atom = next(variable.atoms(), None)
    divisor = atom.operands[1].number if atom is not None and atom.operator == "//" else None
    if atom is None or divisor is None or divisor < 1 or variable.terms.keys() != {((atom, 1),)}:
        return value
    numerator, offset = atom.operands[0], value.offset
    if variable.terms[((atom, 1),)] > 0:
        return _lowest_terms(numerator + offset * divisor)
    return _lowest_terms(-numerator + (offset * divisor + divisor - 1))


@cached
def _without_factor(value: Polynomial) -> Polynomial:
    """A polynomial that is 0 for the same integers."""
    factor = _factor(value)
    if factor == 1 or value.offset % factor:
        return value
    return value.over(factor)


def _solve(value: Polynomial) -> tuple[str, Polynomial] | None:
    """(s, meaning) for `value == 0` where it is linear in a symbol with coefficient 1 or -1; the youngest such one."""
    found = None
    for key, count in value.terms.items():
        if len(key) == 1 and key[0][1] == 1 and not key[0][0].operands and abs(count) == 1:
            name = str(key[0][0])
            rest = value - symbol(name) * count
            if name not in rest.symbols and (found is None or _age(name) > _age(found[0])):
                found = name, rest * -count
    return found


def _age(name: str) -> tuple[int, str]:
    return len(name), name
