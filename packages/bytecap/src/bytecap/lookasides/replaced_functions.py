"""Functions of libraries that are evaluated in another form, and those that users substitute.

transformers collects hidden states and attentions through hooks, which find their collector in a context variable; in
compiled code in an attribute instead, that the innermost model empties as it ends. What the models round it collect
is lost then (GIT: its vision model runs inside of its text model). Evaluated is what runs elsewhere.

functools remembers in weak references, from CPython 3.13 on, which object was given which method of single dispatch.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar

import torch
from torch.distributions import constraints

from bytecap.lookasides.flex_attention import flex_attention
from bytecap.lookasides.torch_state import enter_settings, leave_settings
from bytecap.nodes.triton_kernels import LAUNCHES, nothing, unchanged
from bytecap.objects.base import HANDLERS, Value, inlined
from bytecap.torch_capabilities import TORCH


def set_collector(self: Any, value: Any) -> Any:
    """transformers.utils.output_capturing.CompileableContextVar.set"""
    return self.context_var.set(value)


def method_by_class(self: Any, obj: Any, cls: Any = None) -> Any:
    """functools.singledispatchmethod.__get__"""
    dispatch = self.dispatcher.dispatch
    name = getattr(self.func, "__name__", "singledispatchmethod method")

    def method(*args: Any, **kwargs: Any) -> Any:
        if not args:
            raise TypeError(f"{name} requires at least 1 positional argument")
        return dispatch(args[0].__class__).__get__(obj, cls)(*args, **kwargs)

    method.__isabstractmethod__ = self.__isabstractmethod__  # type: ignore[attr-defined]
    method.register = self.register  # type: ignore[attr-defined]
    update_wrapper(method, self.func)
    return method


def call_region(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What torch.compiler.nested_compile_region puts round a function: equal regions are compiled like any code."""
    return function(*args, **kwargs)


_SETTINGS = ("torch._dynamo.decorators", "DynamoConfigPatchProxy")
_COLLECTOR = ("transformers.utils.output_capturing", "CompileableContextVar")

STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    (_COLLECTOR[0], f"{_COLLECTOR[1]}.set"): set_collector,
    (_SETTINGS[0], f"{_SETTINGS[1]}.__enter__"): enter_settings,
    (_SETTINGS[0], f"{_SETTINGS[1]}.__exit__"): leave_settings,
    ("torch._higher_order_ops.flex_attention", "FlexAttentionHOP.__call__"): flex_attention,
    ("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"): call_region,
    # Once torch's own capture has run in the process, it notes each new nn.Module in its books, which no program sees.
    ("torch._dynamo.mutation_guard", "GenerationTracker.tag"): nothing,
    ("torch._dynamo.mutation_guard", "_GenerationTracker.tag"): nothing,
    ("torch._functorch.utils", "unwrap_dead_wrappers"): unchanged,  # no transform is active, which is guarded
    **LAUNCHES,
}
"""(module, qualified name) -> the function that is evaluated."""

if sys.version_info >= (3, 13):
    STAND_INS["functools", "singledispatchmethod.__get__"] = method_by_class


def _is_symmetric(constraint: Any, value: torch.Tensor) -> torch.Tensor:
    """`check` of the constraint, which asks a tensor whether the matrices are square."""
    if value.shape[-2] != value.shape[-1]:
        return torch.full(value.shape[:-2], False, dtype=torch.bool, device=value.device)
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def _is_positive_definite(constraint: Any, value: torch.Tensor) -> torch.Tensor:
    """`check` of the constraint: where a matrix is not symmetric, only that is said."""
    symmetric = _is_symmetric(constraint, value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric
    positive = torch.linalg.cholesky_ex(value).info.eq(0)
    return torch.where(symmetric.all(), positive, symmetric)


def _is_constraint_met(valid: torch.Tensor, error_message: str) -> torch.Tensor:
    """The condition of a branch that raises, as a tensor: its bool() would end the graph ahead of the branch."""
    return torch.ops.aten._is_all_true(valid)


DISTRIBUTIONS: dict[Any, Callable[..., Value]] = {
    type(constraints.symmetric).check: inlined(_is_symmetric),
    type(constraints.positive_definite).check: inlined(_is_positive_definite),
    TORCH.is_constraint_met: inlined(_is_constraint_met),
}


# -- Functions of C that a user has put Python code for: torch.compiler's `substitute_in_graph`.

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
