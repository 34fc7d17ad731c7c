"""Whether results are those of eager: structure, dtype, shape, strides, values to the accuracy of the dtype.

A value is right if it is as near to eager as the dtype allows, or as near to float64's answer as eager is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

RELATIVE = {
    torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2,
    torch.complex64: 1e-5, torch.complex128: 1e-9,
}  # fmt: skip
"""Against the element, a tenth of it against the greatest of the tensor, and a fiftieth against the greatest operand:
sums cancel to zero only up to their rounding."""
AS_GOOD = 4.0
"""How many times eager's distance from float64 a result may be off."""


@dataclass(frozen=True)
class Run:
    """What one run of a program left: results, gradients of the inputs (None: not asked), the inputs themselves."""

    results: Any
    gradients: tuple[torch.Tensor | None, ...] | None
    inputs: tuple[torch.Tensor, ...]


def faults(found: Run, expected: Run, wide: Callable[[], Run | None], undefined: bool) -> list[str]:
    """What is not as in eager, as sentences. `wide` runs the program in float64; undefined: values mean nothing."""
    memo: list[Run | None] = []

    def widely() -> Run | None:
        if not memo:
            memo.append(wide())
        return memo[0]

    floor = 0.02 * max([1.0, *map(_greatest, expected.inputs)])
    each = functools.partial(_each, wide=widely, undefined=undefined, floor=floor)
    out = each("result", tree_leaves(found.results), tree_leaves(expected.results), lambda r: tree_leaves(r.results))
    out += each("input", found.inputs, expected.inputs, lambda r: r.inputs)
    if expected.gradients is not None and found.gradients is not None and not undefined:
        out += each("gradient", found.gradients, expected.gradients, lambda r: r.gradients or (), strides=False)
    return out


def _greatest(x: torch.Tensor) -> float:
    """The greatest finite magnitude in a tensor of floats."""
    if x.layout is not torch.strided or not (x.is_floating_point() or x.is_complex()) or not x.numel():
        return 0.0
    return float(x.detach().abs().double().nan_to_num(0.0, 0.0, 0.0).max())


def _each(
    what: str, found: Any, expected: Any, part: Callable[[Run], Any], *, wide: Callable[[], Run | None],
    undefined: bool, floor: float, strides: bool = True,
) -> list[str]:  # fmt: skip
    if len(found) != len(expected):
        return [f"{len(found)} {what}s instead of {len(expected)}"]
    out = []
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        fault = _difference(a, b, undefined, strides, floor)
        if fault is not None and fault.startswith("off"):
            run = wide()
            if run is not None and len(part(run)) == len(expected) and _is_as_good(a, b, part(run)[i], floor):
                continue
        if fault is not None:
            out.append(f"{what} {i}: {fault}")
    return out


def _difference(a: Any, b: Any, undefined: bool, strides: bool, floor: float) -> str | None:
    if not isinstance(b, torch.Tensor) or not isinstance(a, torch.Tensor):
        same = type(a) is type(b) and (a == b or a != a)
        return None if same else f"{_short(a)} instead of {_short(b)}"
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return f"{_short(a)} instead of {_short(b)}"
    if a.layout is not torch.strided:
        return _difference(a.detach().to_dense(), b.detach().to_dense(), undefined, False, floor)
    if a.requires_grad != b.requires_grad and strides:
        return f"requires_grad is {a.requires_grad}"
    if strides and _steps(a) != _steps(b):
        return f"strides {a.stride()} instead of {b.stride()} for {tuple(a.shape)}"
    if undefined:
        return None
    return _values(*(x.detach().resolve_conj().resolve_neg() for x in (a, b)), floor)


def _steps(x: torch.Tensor) -> list[tuple[int, int]] | None:
    """The strides that matter."""
    return None if x.numel() == 0 else [(n, k) for n, k in zip(x.shape, x.stride(), strict=True) if n > 1]


def _values(a: torch.Tensor, b: torch.Tensor, floor: float) -> str | None:
    if a.dtype.is_complex:
        return _values(torch.view_as_real(a), torch.view_as_real(b), floor)
    if not a.dtype.is_floating_point:
        return None if torch.equal(a, b) else f"{_some(a)} instead of {_some(b)}"
    wide_a, wide_b = a.double(), b.double()
    if not torch.equal(wide_a.isnan(), wide_b.isnan()):
        return f"off: nan elsewhere: {_some(a)} instead of {_some(b)}"
    finite = wide_a.isfinite() & wide_b.isfinite()
    if not torch.equal(wide_a[~finite].nan_to_num(), wide_b[~finite].nan_to_num()):
        return f"off: inf elsewhere: {_some(a)} instead of {_some(b)}"
    if not finite.any():
        return None
    error, size = (wide_a - wide_b)[finite].abs(), wide_b[finite].abs()
    limit = RELATIVE[b.dtype]
    allowed = limit * (size + 0.1 * size.max() + floor)
    worst = (error / allowed).max().item()
    return None if worst <= 1 else f"off by {worst * limit:.1e}: {_some(a)} instead of {_some(b)}"


def _is_as_good(a: Any, b: Any, wide: Any, floor: float) -> bool:
    """Whether `a` is about as near to float64's answer as eager's `b`; elements equal to eager's are (where both have
    overflowed, say)."""
    if not isinstance(wide, torch.Tensor) or wide.shape != a.shape:
        return False
    if a.dtype.is_complex:
        return wide.dtype.is_complex and _is_as_good(
            *(torch.view_as_real(x.resolve_conj()) for x in (a, b, wide)), floor
        )
    limit = RELATIVE.get(b.dtype, 1e-5)
    a, b, wide = (x.detach().double() for x in (a, b, wide))
    finite = wide.isfinite() & (a != b)
    infinite = ~wide.isfinite()
    if not torch.equal(a[infinite].nan_to_num(), wide[infinite].nan_to_num()):
        return False
    if not a[finite].isfinite().all():
        return False
    size = wide[finite].abs()
    greatest = wide[wide.isfinite()].abs().max() if wide.isfinite().any() else 0.0
    allowed = limit * (size + 0.1 * greatest + floor)
    eager = (b[finite] - wide[finite]).abs().nan_to_num(0.0, 0.0)
    # a random operator draws other numbers in float64: eager is far off there, and that says nothing of `a`
    if (eager > 0.3 * (size + 0.1)).float().mean().item() > 0.2:
        return False
    eager_off = eager.max() if size.numel() else 0.0
    return bool(((a[finite] - wide[finite]).abs() <= allowed + AS_GOOD * eager_off).all())


def _some(x: torch.Tensor) -> str:
    values = ", ".join(f"{v:.7g}" if isinstance(v, float) else str(v) for v in x.flatten()[:4].tolist())
    return f"[{values}{', ...' if x.numel() > 4 else ''}]"


def _short(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    return f"{type(x).__name__} {x!r}"[:60]
