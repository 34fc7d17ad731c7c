"""Inputs of a run: small tensors are saved, of larger ones the type and a seed.

What is saved or drawn is the memory from a tensor's first element to its last; the tensor is a view of it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from stagefold.capsule.file_format import Capsule, Input, Run
from stagefold.errors import BadCapsule
from stagewire.types import reach

SAVED_BYTES = 1 << 16
"""Tensors up to that size are saved, others drawn again."""


def described(inputs: Sequence[Any], limit: int) -> tuple[tuple[Input, ...], bytes]:
    """Rows for the inputs, and the numbers of those of at most `limit` bytes, as torch.save writes them."""
    pairs = [_described(value, number, limit) for number, value in enumerate(inputs)]
    file = io.BytesIO()
    torch.save([flat for _, flat in pairs], file)
    return tuple(row for row, _ in pairs), file.getvalue()


def _described(value: Any, number: int, limit: int) -> tuple[Input, torch.Tensor | None]:
    if isinstance(value, (bool, int, float)):
        return Input("number", value), None
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
        return Input("missing"), None
    span = reach(value.shape, value.stride())
    with torch.no_grad():
        flat = value.detach().as_strided((span,), (1,))
        kept = flat.cpu().clone() if span * value.element_size() <= limit else None
        statistics = (0.0, 1.0) if kept is not None else _statistics(flat)
    row = Input(
        "drawn" if kept is None else "saved",
        dtype=str(value.dtype).removeprefix("torch."),
        shape=tuple(value.shape),
        stride=value.stride(),
        offset=value.storage_offset(),
        device=str(value.device),
        requires_grad=value.requires_grad,
        seed=number,
        statistics=statistics,
    )
    return row, kept


def _statistics(flat: torch.Tensor) -> tuple[float, float]:
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    if not flat.is_floating_point():
        return float(flat.min()), float(flat.max())
    deviation, mean = torch.std_mean(flat.float().nan_to_num(0.0, 0.0, 0.0), correction=0)
    return float(mean), float(deviation)


def inputs_of(capsule: Capsule, run: Run) -> list[Any]:
    """The tensors and numbers of a run: those that were saved, and others of the same type where they were drawn."""
    data = capsule.bytes_of(run, "inputs.pt")
    missing = [number for number, row in enumerate(run.inputs) if row.kind == "missing"]
    if data is None or missing:
        raise BadCapsule(
            f"the inputs of {run.member} are not in {capsule.path}",
            fix="A part of a program between sizes that data decides has none, nor have tensors of a subclass.",
        )
    try:
        saved = torch.load(io.BytesIO(data), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise BadCapsule(f"{run.member}/inputs.pt in {capsule.path} does not load: {error}", fix="") from None
    return [_made(row, flat) for row, flat in zip(run.inputs, saved, strict=True)]


def _made(row: Input, flat: torch.Tensor | None) -> Any:
    if row.kind == "number":
        return row.value
    if flat is None:
        flat = _drawn(row)
    memory = torch.zeros(row.offset + flat.numel(), dtype=flat.dtype)
    memory[row.offset :] = flat
    tensor = memory.to(row.device).as_strided(row.shape, row.stride, row.offset)
    return tensor.requires_grad_(row.requires_grad)


def _drawn(row: Input) -> torch.Tensor:
    dtype = getattr(torch, row.dtype)
    generator = torch.Generator().manual_seed(row.seed)
    size = (reach(row.shape, row.stride),)
    low, high = row.statistics
    if dtype.is_complex:
        real, imaginary = (torch.randn(size, generator=generator) * high + low for _ in range(2))
        return torch.complex(real, imaginary).to(dtype)
    if dtype.is_floating_point:
        return (torch.randn(size, generator=generator) * high + low).to(dtype)
    return torch.randint(int(low), int(high) + 1, size, generator=generator).to(dtype)
