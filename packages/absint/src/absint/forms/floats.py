"""Calls with an open float, a `SizeFloat`, in a form that asks nothing of its value, before autograd sees them.

x ** f                        torch.pow(x, tensor of f): autograd asks whether a number is 0, of a tensor it does not
torch.add(x, y, alpha=f)      x + y * f
leaky_relu(x, f)              where(x > 0, x, x * f)
torch._foreach_mul_(xs, f)    x.mul_(f) for each

Operators with one scalar take it as it is (`absint.float_forms`). What is in neither table has the number fixed.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from absint.meta import leaves
from absint.number_ranges import fits
from absint.promote import ACC_DTYPE, float_dtype, is_integral
from absint.targets import resolve
from absint.vocabulary import listed


class _UnfitError(Exception):
    """The call means something else for such tensors: it is made as it stands, which may refuse them."""


def _form(name: str, rewrite: Callable[..., Any]) -> Callable[..., Any]:
    """The call `name`; as `rewrite` says where an argument is an open float, and `rewrite` knows all arguments."""
    host, signature = resolve(name), inspect.signature(rewrite)

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(leaf, torch.SymFloat) for leaf in leaves((args, kwargs))):
            try:
                bound = signature.bind(*args, **kwargs)
                return rewrite(*bound.args, **bound.kwargs)
            except (TypeError, _UnfitError):
                pass
        return host(*args, **kwargs)

    return call


def _beside(number: Any, tensor: torch.Tensor) -> Any:
    """A number as a tensor that promotes with `tensor` as the number does."""
    if isinstance(number, bool) or not isinstance(number, (torch.SymFloat, float, int)):
        return number
    dtype = float_dtype(tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype)
    return torch.scalar_tensor(number, dtype=dtype, device=tensor.device)


def _fit(operands: Iterable[Any], tensor: torch.Tensor) -> bool:
    """Whether ATen converts the open floats among the operands to the dtype of `tensor` without overflow."""
    return all(fits(operand, tensor.dtype) for operand in operands if isinstance(operand, torch.SymFloat))


def _pow(input: Any, exponent: Any) -> Any:
    if isinstance(input, torch.Tensor):
        return torch.pow(input, _beside(exponent, input))
    return torch.pow(_beside(input, exponent), exponent) if isinstance(exponent, torch.Tensor) else input**exponent


def _of_floats(
    rewrite: Callable[..., Any], *, rounds: bool = False, chooses: bool = False, writes: bool = False
) -> Callable[..., Any]:
    """The form of a function of float tensors: of halves computed in float32, as ATen does, and rounded once.

    rounds: whether ATen rounds numbers to halves too. chooses: whether it only picks elements by a comparison, after
    one operator at most: halves stay halves, and complex tensors are refused. writes: whether it writes its result into
    its first argument, as one does that is called with `inplace=True`.
    """
    signature = inspect.signature(rewrite)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        target: torch.Tensor = given.args[0]
        if is_integral(target.dtype) or (chooses and target.is_complex()) or not _fit(given.arguments.values(), target):
            raise _UnfitError
        is_widened = target.dtype in ACC_DTYPE and not chooses
        if is_widened:
            given.arguments.update({name: widen(value, target) for name, value in given.arguments.items()})
        made = rewrite(*given.args, **given.kwargs)
        if writes or given.arguments.get("inplace"):
            if made.is_complex() and not target.is_complex():
                raise _UnfitError
            return target.copy_(made)
        return made.to(target.dtype) if is_widened else made

    def widen(value: Any, target: torch.Tensor) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is not target.dtype:
            raise _UnfitError
        value = _beside(value, target) if rounds else value
        return value.to(ACC_DTYPE[target.dtype]) if isinstance(value, torch.Tensor) else value

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _hardtanh(input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False) -> Any:
    if min_val > max_val:
        raise _UnfitError
    outside = (input <= min_val) | (input >= max_val)
    return torch.where(outside, input.detach().clamp(min_val, max_val), input)


def _leaky_relu(input: Any, negative_slope: Any = 0.01, inplace: bool = False) -> Any:
    # (Clamped, so that an infinite slope makes no gradient nan where it is not taken.)
    return torch.where(input > 0, input, input.clamp(max=0) * negative_slope)


def _elu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Any:
    # The exponential of what is not taken must not overflow: its gradient would be nan.
    return torch.where(input > 0, input, torch.expm1(input.clamp(max=0)) * alpha)


def _softplus(input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    scaled = input * beta
    return torch.where(scaled > threshold, input, torch.log1p(torch.exp(scaled.clamp(max=threshold))) / beta)


def _added_product(rank: int) -> Callable[..., Any]:
    """addmm or baddbmm: of matrices, or batches of them, of one dtype, onto an input that expands to the product."""

    def call(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        # (With beta == 0 the input is not looked at, be it nan.)
        if isinstance(beta, torch.SymFloat) or not beta or not input.is_floating_point() or input.dtype in ACC_DTYPE:
            raise _UnfitError
        if not _fit((alpha,), input):
            raise _UnfitError
        if not (mat1.dim() == mat2.dim() == rank >= input.dim() and input.dtype is mat1.dtype is mat2.dtype):
            raise _UnfitError
        product = torch.matmul(mat1, mat2) if rank == 2 else torch.bmm(mat1, mat2)
        return (input if beta == 1 else input * beta).expand_as(product) + product * alpha

    return call


def _each(stem: str, writes: bool) -> Callable[..., Any]:
    """A foreach function, as the calls that it consists of."""
    name = f"torch.Tensor.{stem}{'_' * writes}"
    single = FLOAT_FORMS.get(name) or resolve(name)

    def call(self: Sequence[Any], *operands: Any, **options: Any) -> Any:
        if any(is_integral(tensor.dtype) for tensor in self):
            raise _UnfitError
        # Numbers for each tensor come last (of addcmul and addcdiv: as `scalars`).
        if stem in ("addcmul", "addcdiv") and len(operands) == 3:
            *operands, options["value"] = operands  # type: ignore[assignment]
        if "scalars" in options:
            options["value"] = options.pop("scalars")
        made = []
        for at, tensor in enumerate(self):
            row, named = [item(operand, at) for operand in operands], {key: item(options[key], at) for key in options}
            made.append(single(tensor, *row, **named))
        return None if writes else made

    def item(operand: Any, at: int) -> Any:
        return operand[at] if isinstance(operand, (list, tuple)) else operand

    return call


_SCALED: dict[str, tuple[Callable[..., Any], bool]] = {
    "add": (lambda input, other, *, alpha=1: input + other * alpha, True),
    "sub": (lambda input, other, *, alpha=1: input - other * alpha, True),
    "addcmul": (lambda input, tensor1, tensor2, *, value=1: input + tensor1 * value * tensor2, False),
    "addcdiv": (lambda input, tensor1, tensor2, *, value=1: input + tensor1 * value / tensor2, False),
    "lerp": (lambda input, end, weight: torch.lerp(input, end, _beside(weight, input)), False),
}
"""Functions and methods with a twin that writes, and whether ATen rounds their numbers to halves."""

_REWRITES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("operator.pow", "torch.pow", "torch.Tensor.pow", "torch.Tensor.__pow__"), _pow),
    "torch.Tensor.__rpow__": lambda exponent, input: _pow(input, exponent),
    "torch.Tensor.pow_": lambda self, exponent: self.pow_(_beside(exponent, self)),
    "torch.nn.functional.softplus": _of_floats(_softplus),
    "torch.nn.functional.elu": _of_floats(_elu),
    "torch.nn.functional.leaky_relu": _of_floats(_leaky_relu, chooses=True),
    "torch.nn.functional.hardtanh": _of_floats(_hardtanh, chooses=True),
    "torch.nn.functional.threshold": _of_floats(
        lambda input, threshold, value, inplace=False: torch.where(
            input <= threshold, torch.full_like(input, value), input
        ),
        chooses=True,
    ),
    **dict.fromkeys(("torch.addmm", "torch.Tensor.addmm"), _added_product(2)),
    **dict.fromkeys(("torch.baddbmm", "torch.Tensor.baddbmm"), _added_product(3)),
}
for _name, (_rewrite, _rounds) in _SCALED.items():
    _REWRITES |= dict.fromkeys((f"torch.{_name}", f"torch.Tensor.{_name}"), _of_floats(_rewrite, rounds=_rounds))
    _REWRITES[f"torch.Tensor.{_name}_"] = _of_floats(_rewrite, rounds=_rounds, writes=True)
_FOREACH = "add sub mul div addcmul addcdiv lerp pow clamp_min clamp_max"

FLOAT_FORMS: dict[str, Callable[..., Any]] = {
    name: _form(name, rewrite) for name, rewrite in _REWRITES.items() if listed(name) is not None
}
"""See `absint.forms`; of the calls that this torch has."""
for _name, _writes in itertools.product(_FOREACH.split(), (False, True)):
    _function = f"torch._foreach_{_name}{'_' * _writes}"
    if listed(_function) is not None:
        FLOAT_FORMS[_function] = _form(_function, _each(_name, _writes))
