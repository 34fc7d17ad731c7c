"""Functions of C that a user has put Python code for: torch.compiler's `substitute_in_graph`."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar

from bytecap.objects.dispatch import HANDLERS, inlined

Function = TypeVar("Function", bound=Callable[..., Any])

SUBSTITUTES: dict[Any, Callable[..., Any]] = {}
"""What users registered, by the functions of C."""


def substitute_in_graph(
    original: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[Function], Function]:
    """A decorator: where captured code calls `original`, a function of C, the decorated one is evaluated instead.

    can_constant_fold_through: it is pure, and done at once where its arguments are known (which changes nothing here).
    skip_signature_check: it may have other parameters.

    Errors: TypeError where `original` is no function of C, or the parameters differ; ValueError where it has one.
    """
    if not isinstance(original, types.BuiltinFunctionType):
        raise TypeError(f"substitute_in_graph() takes a function of C, not {original!r}: others are evaluated")
    if original in SUBSTITUTES:
        raise ValueError(f"{original!r} is substituted by {SUBSTITUTES[original]!r}")

    def register(substitute: Function) -> Function:
        if not skip_signature_check:
            _compare_parameters(original, substitute)
        SUBSTITUTES[original] = substitute
        HANDLERS[original] = inlined(substitute)
        return substitute

    return register


def _compare_parameters(original: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    try:
        known = inspect.signature(original)
    except ValueError:  # C tells none
        return
    if [*map(_shape, known.parameters.values())] != [*map(_shape, inspect.signature(substitute).parameters.values())]:
        raise TypeError(f"{original!r} takes {known}, its substitute {inspect.signature(substitute)}")


def _shape(parameter: inspect.Parameter) -> tuple[object, ...]:
    return parameter.name, parameter.kind, parameter.default
