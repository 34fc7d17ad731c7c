"""The form of the rules: tables of rows, each a function of types for some overloads.

    row         ::= name* function constraint* question?
    constraint  ::= label text holds refused error

A function names the arguments that it looks at, as the schema does (`absint.signatures`). A constraint is what is
demanded beyond what the function computes with, with a call that it refuses: eager refuses the same call, with an
exception of the same class (`tests/test_constraints.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from absint.errors import DataDependentError, TypeRuleError
from absint.kernels import Question, asked
from absint.meta import Meta, contiguous
from absint.number_ranges import checked_numbers
from absint.signatures import bind, full_name

if TYPE_CHECKING:
    from torch._ops import OpOverload

TypeOf = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that a constraint refuses: the overload's short name, the arguments with types in place of tensors."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """One condition on the operands of a rule.

    label: "C1"; unique among the constraints of an overload.
    text: the condition, a sentence.
    holds: of those arguments that it names, as a rule. A question about symbolic sizes becomes a guard.
    refused: a call for which it does not hold.
    error: what is raised then; its `eager` is the class that eager raises.
    """

    label: str
    text: str
    holds: Callable[..., Any]
    refused: Refused
    error: type[TypeRuleError] = TypeRuleError


def _checked(func: OpOverload, rule: Callable[..., Any], constraints: tuple[Constraint, ...]) -> Callable[..., Any]:
    """The rule of an overload behind its constraints."""
    name = str(func).removeprefix("aten.").removesuffix(".default")
    conditions = [(bind(constraint.holds, func), constraint) for constraint in constraints]

    def check(*args: Any, **kwargs: Any) -> Any:
        for holds, constraint in conditions:
            if not holds(*args, **kwargs):
                raise constraint.error(f"{name}: {constraint.text} ({constraint.label})")
        return rule(*args, **kwargs)

    return check


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
            rule = _checked(func, rule, self.requires)
        return checked_numbers(func, rule if self.question is None else asked(func, rule, self.question))


class RuleTable(dict[str, Rule]):
    """Rules of one family by overload name.

    Namespaces are implied: "add.Tensor" means "aten.add.Tensor", "gelu" means "aten.gelu.default".
    """

    def rows(self, rows: Mapping[str, TypeOf | Rule], question: Question | None = None) -> None:
        """Add a rule for each name of each row; names are separated by spaces, and a second owner is an error.

        question: how ATen's kernel is asked before each of the rules, if it is (`absint.kernels`).
        """
        for names, rule in rows.items():
            for name in map(full_name, names.split()):
                if name in self:
                    raise ValueError(f"{name} has two rules")
                self[name] = rule if isinstance(rule, Rule) else Rule(rule)
        if question is not None:
            self.ask(" ".join(rows), question)

    def ask(self, names: str, question: Question | None = None) -> None:
        """Have ATen's kernel asked before the rule of each of `names` answers (`absint.kernels`)."""
        for name in map(full_name, names.split()):
            if name not in self or self[name].question is not None:
                raise ValueError(f"{name} has no rule, or is asked about twice")
            self[name] = replace(self[name], question=question or Question())


def of_data(message: str) -> TypeOf:
    """The rule of an op the sizes of whose result data decides."""

    def refuse() -> NoReturn:
        raise DataDependentError(message)

    return refuse


def f32(*shape: int) -> Meta:
    """A contiguous float32, for examples."""
    return contiguous(shape, torch.float32)


def i64(*shape: int) -> Meta:
    """A contiguous int64, for examples."""
    return contiguous(shape, torch.int64)
