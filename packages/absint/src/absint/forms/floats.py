"""Calls with an open float, a `SizeFloat`, in a form that asks nothing of its value, before autograd sees them.

x ** f                        torch.pow(x, tensor of f): autograd asks whether a number is 0, of a tensor it does not
torch.add(x, y, alpha=f)      x + y * f
leaky_relu(x, f)              where(x > 0, x, x * f)
torch._foreach_mul_(xs, f)    x.mul_(f) for each

Operators with one scalar take it as it is (`absint.float_forms`). What is in neither table has the number fixed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from absint.meta import leaves
from absint.targets import resolve
from absint.vocabulary import listed


def _is_open(value: Any) -> bool:
    return any(isinstance(leaf, torch.SymFloat) for leaf in leaves(value))


class _UnfitError(Exception):
    """The call refuses such tensors, or means something else for them: it is made as it stands."""


def _form(name: str, rewrite: Callable[..., Any]) -> Callable[..., Any]:
    """The call `name`; as `rewrite` says where an argument is an open float, and `rewrite` knows all arguments."""
    host, signature = resolve(name), inspect.signature(rewrite)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(map(_is_open, args)) and not any(map(_is_open, kwargs.values())):
            return host(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
            return rewrite(*bound.args, **bound.kwargs)
        except (TypeError, _UnfitError):
            return host(*args, **kwargs)

    return call


def _need_floats(*operands: Any) -> None:
    """One of the operands is no integer."""
    if not any(_is_inexact(operand) for operand in operands):
        raise _UnfitError


def _is_inexact(operand: Any) -> bool:
    if isinstance(operand, torch.Tensor):
        return operand.is_floating_point() or operand.is_complex()
    return isinstance(operand, (float, complex, torch.SymFloat))


def _beside(number: Any, tensor: torch.Tensor) -> Any:
    """A number as a tensor that promotes with `tensor` as the number does."""
    if isinstance(number, bool) or not isinstance(number, (torch.SymFloat, float, int)):
        return number
    dtype = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
    return torch.scalar_tensor(
        number, dtype=dtype if _is_inexact(tensor) else torch.get_default_dtype(), device=tensor.device
    )


def _pow(input: Any, exponent: Any) -> Any:
    if isinstance(input, torch.Tensor):
        return torch.pow(input, _beside(exponent, input))
    return torch.pow(_beside(input, exponent), exponent) if isinstance(exponent, torch.Tensor) else input**exponent


def _in_floats(rounds: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For functions of floats that end in a number: halves are computed in float32, as ATen does, and rounded once.

    rounds: whether ATen rounds the number to a half too.
    """

    def decorate(rewrite: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(rewrite)
        last = list(signature.parameters)[-1]

        def inner(*operands: Any) -> Any:
            return rewrite(*operands[:-1], **{last: operands[-1]})

        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            *operands, number = (*given.args, *given.kwargs.values())
            _need_floats(*operands)
            dtype = operands[0].dtype
            if dtype not in _HALVES:
                return inner(*operands, number)
            if any(getattr(operand, "dtype", dtype) is not dtype for operand in operands):
                raise _UnfitError
            wide = [one.float() if isinstance(one, torch.Tensor) else one for one in operands]
            number = _beside(number, operands[0] if rounds else wide[0])
            return inner(*wide, number.float()).to(dtype)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


_HALVES = (torch.float16, torch.bfloat16)


@_in_floats(rounds=True)
def _add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return input + other * alpha


@_in_floats(rounds=True)
def _sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return input - other * alpha


@_in_floats()
def _addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    return input + tensor1 * value * tensor2


@_in_floats()
def _addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    return input + tensor1 * value / tensor2


def _written(rewrite: Callable[..., Any]) -> Callable[..., Any]:
    """The form of a method that writes its result into its tensor, a float one."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _need_floats(self)
        made = rewrite(self, *args, **kwargs)
        if made.is_complex() and not self.is_complex():
            raise _UnfitError
        return self.copy_(made)

    call.__signature__ = inspect.signature(rewrite)  # type: ignore[attr-defined]
    return call


def _added_product(rank: int) -> Callable[..., Any]:
    """addmm or baddbmm: of matrices, or batches of them, of one dtype, onto an input that expands to the product."""

    def call(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        # (With beta == 0 the input is not looked at, be it nan.)
        if _is_open(beta) or not beta or not input.is_floating_point() or input.dtype in _HALVES:
            raise _UnfitError
        if not (mat1.dim() == mat2.dim() == rank >= input.dim() and input.dtype is mat1.dtype is mat2.dtype):
            raise _UnfitError
        product = torch.matmul(mat1, mat2) if rank == 2 else torch.bmm(mat1, mat2)
        return (input if beta == 1 else input * beta).expand_as(product) + product * alpha

    return call


@_in_floats()
def _lerp(input: Any, end: Any, weight: Any) -> Any:
    return torch.lerp(input, end, _beside(weight, input))


def _softplus(input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    _need_floats(input)
    scaled = input * beta
    return torch.where(scaled > threshold, input, torch.log1p(torch.exp(scaled.clamp(max=threshold))) / beta)


def _hardtanh(input: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    if min_val > max_val:
        raise _UnfitError
    outside = (input <= min_val) | (input >= max_val)
    return torch.where(outside, input.detach().clamp(min_val, max_val), input)


def _activation(rewrite: Callable[..., Any]) -> Callable[..., Any]:
    """The form of a function of floats that may write its result into its first argument."""
    inner = list(inspect.signature(rewrite).parameters.values())
    option = inspect.Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False)
    signature = inspect.Signature([*inner, option])

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        input, *rest, inplace = given.args
        if not input.is_floating_point():
            raise _UnfitError
        made = rewrite(input, *rest)
        return input.copy_(made) if inplace else made

    return call


def _new_tensor(self: Any, data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    row = data if isinstance(data, (list, tuple)) else (data,)
    made = [torch.scalar_tensor(item, dtype=dtype or self.dtype, device=device or self.device) for item in row]
    return torch.stack(made) if row is data else made[0]


def _each(stem: str, inplace: bool) -> Callable[..., Any]:
    """A foreach function, as the calls that it consists of."""
    single = _SINGLE.get((stem, inplace)) or getattr(torch.Tensor, stem + "_" * inplace)

    def call(self: Sequence[Any], *operands: Any, **options: Any) -> Any:
        for tensor in self:
            _need_floats(tensor)
        # Numbers for each tensor come last (of addcmul and addcdiv: as `scalars`).
        numbers = options.pop("scalars", None)
        if stem in ("addcmul", "addcdiv") and len(operands) == 3:
            *operands, numbers = operands  # type: ignore[assignment]
        made = []
        for at, tensor in enumerate(self):
            row = [_item(operand, at) for operand in operands]
            made.append(single(tensor, *row, **options, **({} if numbers is None else {"value": _item(numbers, at)})))
        return None if inplace else made

    return call


def _item(operand: Any, at: int) -> Any:
    return operand[at] if isinstance(operand, (list, tuple)) else operand


_SINGLE: dict[tuple[str, bool], Callable[..., Any]] = {
    ("add", False): _add, ("sub", False): _sub, ("pow", False): _pow,
    ("addcmul", False): _addcmul, ("addcdiv", False): _addcdiv, ("lerp", False): _lerp,
    ("add", True): _written(_add), ("sub", True): _written(_sub), 
    ("pow", True): lambda self, exponent: self.pow_(_beside(exponent, self)),
    ("addcmul", True): _written(_addcmul), ("addcdiv", True): _written(_addcdiv), ("lerp", True): _written(_lerp),
}  # fmt: skip
_FOREACH = "add sub mul div addcmul addcdiv lerp pow clamp_min clamp_max"
_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    # (Clamped, so that an infinite slope makes no gradient nan where it is not taken.)
    "leaky_relu": lambda input, negative_slope=0.01: torch.where(input > 0, input, input.clamp(max=0) * negative_slope),
    # The exponential of what is not taken must not overflow: its gradient would be nan.
    "elu": lambda input, alpha=1.0: torch.where(input > 0, input, torch.expm1(input.clamp(max=0)) * alpha),
    "hardtanh": _hardtanh,
    "threshold": lambda input, threshold, value: torch.where(input <= threshold, torch.full_like(input, value), input),
}  # fmt: skip

_REWRITES: dict[str, Callable[..., Any]] = {
    "operator.pow": _pow,
    "torch.Tensor.__pow__": _pow,
    "torch.Tensor.__rpow__": lambda exponent, input: _pow(input, exponent),
    "torch.nn.functional.softplus": _softplus,
    "torch.Tensor.new_tensor": _new_tensor,
    **{f"torch.{end}addmm": _added_product(2) for end in ("", "Tensor.")},
    **{f"torch.{end}baddbmm": _added_product(3) for end in ("", "Tensor.")},
    **{f"torch.nn.functional.{name}": _activation(rewrite) for name, rewrite in _ACTIVATIONS.items()},
    **{f"torch.{stem}": rewrite for (stem, inplace), rewrite in _SINGLE.items() if not inplace},
    **{f"torch.Tensor.{stem}{'_' * inplace}": rewrite for (stem, inplace), rewrite in _SINGLE.items()},
    **{f"torch._foreach_{stem}{'_' * end}": _each(stem, end) for stem in _FOREACH.split() for end in (False, True)},
}

FLOAT_FORMS: dict[str, Callable[..., Any]] = {
    name: _form(name, rewrite) for name, rewrite in _REWRITES.items() if listed(name) is not None
}
"""See `absint.forms`; of the calls that this torch has."""
