"""What a function of a Capture means that `torch.func` transforms: torch's own transform of its graph.

    apply ::= name(*operands, captured)          captured: tensors that the function closes over

Works on real tensors, on abstract ones, and on those of a tracer: the transform turns into ordinary operations there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from stagewire.capture import Transform

Body = Callable[..., tuple[Any, ...]]


def apply_transform(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of the transformed `body` (which takes and gives flat tensors), flattened."""
    return _KINDS[transform.kind](transform, body, operands)


def _vmap(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    mapped = torch.func.vmap(
        body, transform.in_dims, transform.out_dims, transform.randomness, chunk_size=transform.chunk_size
    )
    return tuple(mapped(*operands))


def _split(transform: Transform, body: Body) -> Callable[..., tuple[Any, Any]]:
    """The function's outputs, and what it gives besides them."""

    def function(*arguments: Any) -> tuple[Any, Any]:
        found = body(*arguments)
        return found[: transform.outputs], found[transform.outputs :]

    return function


def _grad(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    def function(*arguments: Any) -> tuple[Any, Any]:
        value, *rest = body(*arguments)
        return value, tuple(rest)

    gradients, (value, rest) = torch.func.grad_and_value(function, transform.wanted, has_aux=True)(*operands)
    return (*gradients, value, *rest)


def _jvp(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    count = transform.arguments
    outputs, tangents, rest = torch.func.jvp(_split(transform, body), operands[:count], operands[count:], has_aux=True)
    return (*outputs, *tangents, *rest)


def _dual_level(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    with torch.autograd.forward_ad.dual_level():
        return body(*operands)


def _vjp(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    count = transform.arguments
    _, pull_back, _ = torch.func.vjp(_split(transform, body), *operands[:count], has_aux=True)
    return tuple(pull_back(operands[count:]))


def _jacobian(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    if transform.kind == "jacrev":
        derive = partial(torch.func.jacrev, chunk_size=transform.chunk_size)
    else:
        derive = partial(torch.func.jacfwd, randomness=transform.randomness)
    rows, rest = derive(_split(transform, body), transform.wanted, has_aux=True)(*operands)
    return (*[entry for row in rows for entry in row], *rest)


_KINDS: dict[str, Callable[[Transform, Body, tuple[Any, ...]], tuple[Any, ...]]] = {
    "call": lambda transform, body, operands: body(*operands),
    "vmap": _vmap,
    "grad": _grad,
    "jvp": _jvp,
    "dual_level": _dual_level,
    "vjp": _vjp,
    "jacrev": _jacobian,
    "jacfwd": _jacobian,
}
