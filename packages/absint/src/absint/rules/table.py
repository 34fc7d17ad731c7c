"""How rule modules register: a table filled by a decorator while the module is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absint.kernels import Question, asked
from absint.meta import Meta
from absint.rules.constraint import Constraint, checked

__all__ = ["Rule", "RuleTable", "Types"]

Types = Meta | tuple["Types | None", ...] | None
Rule = Callable[..., Any]


class RuleTable(dict[str, Rule]):
    """Rules of one family by overload name; `@table.rule("aten.add.Tensor")` adds one.

    Namespaces are implied: "add.Tensor" means "aten.add.Tensor", "gelu" means "aten.gelu.default".

    constraints: what the rules demand, by overload.
    questions: how ATen's kernel is asked for the dtypes, ranks and attributes that it takes, by overload.
    """

    def __init__(self) -> None:
        super().__init__()
        self.constraints: dict[str, tuple[Constraint, ...]] = {}
        self.questions: dict[str, Question] = {}

    def rule(self, *names: str, requires: tuple[Constraint, ...] = ()) -> Callable[[Rule], Rule]:
        """Register the decorated function for each of `names` (separated by spaces or arguments)."""

        def register(function: Rule) -> Rule:
            for entry in names:
                for name in entry.split():
                    self.add(name, function, requires)
            return function

        return register

    def add(self, name: str, function: Rule, requires: tuple[Constraint, ...] = ()) -> None:
        """Register `function` for one short or full overload name; a second owner is an error."""
        full = full_name(name)
        if full in self:
            raise ValueError(f"{full} has two rules")
        if requires:
            self.constraints[full] = requires
        self[full] = checked(name, function, requires) if requires else function

    def ask(self, *names: str, question: Question | None = None) -> None:
        """Have ATen's kernel asked, before the rule of each of `names` answers (`absint.kernels`)."""
        for entry in names:
            for name in entry.split():
                full = full_name(name)
                if full not in self or full in self.questions:
                    raise ValueError(f"{full} has no rule, or is asked about twice")
                self.questions[full] = question or Question()
                self[full] = asked(full, self[full], self.questions[full])


def full_name(name: str) -> str:
    """ "add.Tensor" -> "aten.add.Tensor", "gelu" -> "aten.gelu.default"."""
    parts = name.split(".")
    if len(parts) == 1:
        return f"aten.{name}.default"
    if len(parts) == 2:
        return f"aten.{name}"
    return name
