"""What a rule demands of its operands beyond what it computes with: labelled constraints, each with a call it refuses.

    constraint  ::= label text holds refused error

Eager refuses the same call, with an exception of the same class (`tests/test_constraints.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from absint.errors import TypeRuleError
from absint.meta import Meta, contiguous
from absint.signatures import bind

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["Constraint", "Refused", "boolean", "checked", "f32", "f64", "i64"]


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


def checked(func: OpOverload, rule: Callable[..., Any], constraints: tuple[Constraint, ...]) -> Callable[..., Any]:
    """The rule of an overload behind its constraints."""
    name = str(func).removeprefix("aten.").removesuffix(".default")
    conditions = [(bind(constraint.holds, func), constraint) for constraint in constraints]

    def check(*args: Any, **kwargs: Any) -> Any:
        for holds, constraint in conditions:
            if not holds(*args, **kwargs):
                raise constraint.error(f"{name}: {constraint.text} ({constraint.label})")
        return rule(*args, **kwargs)

    return check


def f32(*shape: int) -> Meta:
    """A contiguous float32, for examples."""
    return contiguous(shape, torch.float32)


def f64(*shape: int) -> Meta:
    """A contiguous float64, for examples."""
    return contiguous(shape, torch.float64)


def i64(*shape: int) -> Meta:
    """A contiguous int64, for examples."""
    return contiguous(shape, torch.int64)


def boolean(*shape: int) -> Meta:
    """A contiguous bool, for examples."""
    return contiguous(shape, torch.bool)
