"""How rule modules register: a table filled by a decorator while the module is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absint.meta import Meta

__all__ = ["Rule", "RuleTable", "Types"]

Types = Meta | tuple["Types | None", ...] | None
Rule = Callable[..., Any]


class RuleTable(dict[str, Rule]):
    """Rules of one family by overload name; `@table.rule("aten.add.Tensor")` adds one.

    Namespaces are implied: "add.Tensor" means "aten.add.Tensor", "gelu" means "aten.gelu.default".
    """

    def rule(self, *names: str) -> Callable[[Rule], Rule]:
        """Register the decorated function for each of `names` (separated by spaces or arguments)."""

        def register(function: Rule) -> Rule:
            for entry in names:
                for name in entry.split():
                    self.add(name, function)
            return function

        return register

    def add(self, name: str, function: Rule) -> None:
        """Register `function` for one short or full overload name; a second owner is an error."""
        full = full_name(name)
        if full in self:
            raise ValueError(f"{full} has two rules")
        self[full] = function


def full_name(name: str) -> str:
    """ "add.Tensor" -> "aten.add.Tensor", "gelu" -> "aten.gelu.default"."""
    parts = name.split(".")
    if len(parts) == 1:
        return f"aten.{name}.default"
    if len(parts) == 2:
        return f"aten.{name}"
    return name
