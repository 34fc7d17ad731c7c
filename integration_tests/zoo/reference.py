"""Is a difference from eager rounding or a wrong answer? Decided with the same step in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

TOLERATED = 4.0
"""How many times eager's own distance from float64 ours may lie away from it."""
FLOOR = 1e-6
"""The least distance that counts, relative to the largest value of its kind (outputs, gradients, buffers)."""
OTHER_STREAM = 1e-2
"""Eager in float64 this far from eager in float32 drew other random numbers: then float32 itself is the judge."""

Tensors = dict[str, torch.Tensor]


def step(
    model: nn.Module,
    call: Callable[..., Any],
    inputs: Mapping[str, Any],
    train: bool,
    seed: int,
    *,
    leaves: bool = True,
) -> Tensors:
    """One call, with a backward pass in training: outputs, gradients, buffers and the random numbers drawn next."""
    model.zero_grad(set_to_none=True)
    given = {name: _fresh(value, train and leaves) for name, value in inputs.items()}
    torch.manual_seed(seed)
    with torch.set_grad_enabled(train):
        outputs = dict(tensors_of(call(**given)))
        if train:
            _loss(outputs).backward()
    seen = {f"output{name}": value.detach() for name, value in outputs.items()}
    seen |= {f"grad.{name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    seen |= {f"grad input.{n}": v.grad for n, v in given.items() if isinstance(v, torch.Tensor) and v.grad is not None}
    seen |= {f"buffer.{name}": buffer.clone() for name, buffer in model.named_buffers()}
    return seen | {"random": torch.rand(4)}


def double(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def double_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def wrong_answers(eager: Tensors, exact: Tensors, ours: Tensors, *, floor: float = FLOOR) -> list[str]:
    """What is not explained by rounding, as sentences. `eager` and `ours` in float32, `exact` in float64."""
    if eager.keys() != ours.keys():
        return [f"other tensors: {sorted(eager.keys() ^ ours.keys())}"]
    sizes: dict[str, float] = {}
    for name, value in exact.items():
        sizes[_kind(name)] = max(sizes.get(_kind(name), 0.0), _size(value))
    return [
        f"{name}: {reason}"
        for name in eager
        if (reason := _difference(eager[name], exact[name], ours[name], sizes[_kind(name)], floor))
    ]


def tensors_of(result: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors inside tuples, lists, dicts and key-value caches, with their paths."""
    if isinstance(result, torch.Tensor):
        yield name, result
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from tensors_of(value, f"{name}.{key}")
    elif isinstance(result, tuple | list):
        for position, value in enumerate(result):
            yield from tensors_of(value, f"{name}.{position}")
    elif hasattr(result, "self_attention_cache"):
        yield from tensors_of([result.self_attention_cache, result.cross_attention_cache], name)
    elif hasattr(result, "layers"):
        yield from tensors_of([vars(layer) for layer in result.layers], name)


def structure(result: Any) -> Any:
    """Classes, keys, shapes, dtypes and gradients of a result: everything but the numbers."""
    if isinstance(result, torch.Tensor):
        return type(result), tuple(result.shape), result.dtype, result.requires_grad
    if isinstance(result, Mapping):
        return type(result), [(key, structure(value)) for key, value in result.items()]
    if isinstance(result, tuple | list):
        return type(result), [structure(value) for value in result]
    return type(result)


def _fresh(value: Any, leaf: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(leaf and value.is_floating_point())


def _loss(outputs: Tensors) -> torch.Tensor:
    """A weighted sum of every output, so that no two elements can be exchanged unseen."""
    weights = torch.Generator().manual_seed(5)
    parts = [
        (value * torch.randn(value.shape, generator=weights).to(value)).sum() / max(1, value.numel()) ** 0.5
        for value in outputs.values()
        if value.requires_grad
    ]
    return torch.stack(parts).sum()


def _difference(eager: torch.Tensor, exact: torch.Tensor, ours: torch.Tensor, size: float, floor: float) -> str:
    if (ours.shape, ours.dtype) != (eager.shape, eager.dtype):
        return f"{ours.dtype} {tuple(ours.shape)}, expected {eager.dtype} {tuple(eager.shape)}"
    if not eager.is_floating_point():
        return "" if torch.equal(eager, ours) else "other integers"
    if not torch.equal(torch.isfinite(eager), torch.isfinite(ours)):
        return "other elements are infinite or nan"
    eager, exact, ours = (torch.where(torch.isfinite(eager), value.double(), 0.0) for value in (eager, exact, ours))
    eager_error, our_error = _size(eager - exact), _size(ours - exact)
    if eager_error > OTHER_STREAM * size:
        eager_error, our_error = 0.0, _size(ours - eager)
    allowed = TOLERATED * max(eager_error, floor * size)
    return f"{our_error:.2e} from float64, eager {eager_error:.2e}" if our_error > allowed else ""


def _kind(name: str) -> str:
    return name.partition(".")[0]


def _size(value: torch.Tensor) -> float:
    return float(torch.nan_to_num(value.double(), 0.0, 0.0, 0.0).abs().max()) if value.numel() else 0.0
