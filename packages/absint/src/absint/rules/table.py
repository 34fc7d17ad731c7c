"""The form of the rules: tables of rows, each a function of types for some overloads.

    row  ::= name* function constraint* question?

A function names the arguments that it looks at, as the schema does (`absint.signatures`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from absint.kernels import Question, asked
from absint.rules.constraint import Constraint, checked
from absint.signatures import bind, full_name

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["Rule", "RuleTable", "TypeOf"]

TypeOf = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """How the result type of an overload is found.

    type_of: a function of those of its arguments that it names.
    requires: what is demanded of the arguments first.
    question: how ATen's kernel is asked for the dtypes, ranks and attributes that it takes, before all else.
    """

    type_of: TypeOf
    requires: tuple[Constraint, ...] = ()
    question: Question | None = None

    def bound(self, func: OpOverload) -> TypeOf:
        """The result type as a function of all arguments of the overload."""
        rule = bind(self.type_of, func)
        if self.requires:
            rule = checked(func, rule, self.requires)
        return rule if self.question is None else asked(func, rule, self.question)


class RuleTable(dict[str, Rule]):
    """Rules of one family by overload name.

    Namespaces are implied: "add.Tensor" means "aten.add.Tensor", "gelu" means "aten.gelu.default".
    """

    def rows(self, rows: Mapping[str, TypeOf | Rule]) -> None:
        """Add a rule for each name of each row; names are separated by spaces, and a second owner is an error."""
        for names, rule in rows.items():
            for name in map(full_name, names.split()):
                if name in self:
                    raise ValueError(f"{name} has two rules")
                self[name] = rule if isinstance(rule, Rule) else Rule(rule)

    def rule(self, names: str, *requires: Constraint) -> Callable[[TypeOf], TypeOf]:
        """Add the decorated function as a row."""

        def register(function: TypeOf) -> TypeOf:
            self.rows({names: Rule(function, requires)})
            return function

        return register

    def ask(self, names: str, question: Question | None = None) -> None:
        """Have ATen's kernel asked before the rule of each of `names` answers (`absint.kernels`)."""
        for name in map(full_name, names.split()):
            if name not in self or self[name].question is not None:
                raise ValueError(f"{name} has no rule, or is asked about twice")
            self[name] = replace(self[name], question=question or Question())
