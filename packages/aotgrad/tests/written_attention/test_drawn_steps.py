"""Drawn ways from the scores to the softmax: what is taken for attention computes what eager does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotgrad import AotGrad, Options, bind_interpreted
from aotgrad.testing import capture_by_torch_function

BATCH, HEADS, ROWS, KEYS, WIDTH = 2, 3, 5, 7, 4
FULL, FLAT = (BATCH, HEADS, ROWS, KEYS), (BATCH * HEADS, ROWS, KEYS)


@st.composite
def operands(draw: st.DrawFn, flat: bool) -> torch.Tensor:
    """Numbers that broadcast to the scores, also in fewer dimensions."""
    shape = FLAT if flat else FULL
    kept = draw(st.integers(0, len(shape)))
    chosen = [size if draw(st.booleans()) else 1 for size in shape[len(shape) - kept :]]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randn(chosen, generator=generator)


@st.composite
def programs(draw: st.DrawFn) -> Any:
    """(steps, whether the products are of three dimensions); a step is (kind, operand or number)."""
    flat = starts_flat = draw(st.booleans())
    steps: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(
            ("mul", "div", "by", "add", "radd", "iadd", "sub", "fill", "fill_", "where", "whither", "form", "cast")
        ))  # fmt: skip
        if kind == "form":
            flat = not flat
        x: Any = draw(st.sampled_from((0.5, 2.0, -1.5, 3))) if kind in ("mul", "div") else None
        if kind in ("add", "radd", "iadd", "sub", "by"):
            x = draw(operands(flat))
            x = x.requires_grad_(draw(st.booleans())) if kind != "by" else x[..., :1].abs() + 0.5 if x.dim() else x
        if kind in ("fill", "fill_", "where", "whither"):
            low = draw(st.sampled_from((-float("inf"), -1e9, torch.finfo(torch.float32).min, -2e4)))
            x = (draw(operands(flat)) > 1.0, low)
        steps.append((kind, x))
    return steps, starts_flat


def stepped(scores: torch.Tensor, steps: list[tuple[str, Any]]) -> torch.Tensor:
    for kind, x in steps:
        match kind:
            case "mul" | "by":
                scores = scores * x
            case "div":
                scores = scores / x
            case "add":
                scores = scores + x
            case "radd":
                scores = x + scores
            case "iadd":
                scores += x
            case "sub":
                scores = scores - x
            case "fill":
                scores = scores.masked_fill(*x)
            case "fill_":
                scores.masked_fill_(*x)
            case "where":
                scores = torch.where(~x[0], scores, x[1])
            case "whither":
                scores = torch.where(x[0], torch.full_like(scores, x[1]), scores)
            case "form":
                scores = scores.view(FULL if scores.dim() == 3 else FLAT)
            case "cast":
                scores = scores.float()
    return scores


@pytest.mark.usefixtures("any_kernel")
@settings(max_examples=150)
@given(programs())
def test_drawn_steps(program: Any) -> None:
    steps, flat = program

    def attend(q, k, v):
        if flat:
            q, k = q.flatten(0, 1), k.flatten(0, 1)
        weights = torch.softmax(stepped(q @ k.mT, steps), -1)
        return weights.view(FULL) @ v

    generator = torch.Generator().manual_seed(0)
    shapes = ((BATCH, HEADS, ROWS, WIDTH), (BATCH, HEADS, KEYS, WIDTH), (BATCH, HEADS, KEYS, WIDTH))
    leaves = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    leaves += [x for _, x in steps if isinstance(x, torch.Tensor) and x.requires_grad]
    capture, tensors = capture_by_torch_function(attend, leaves[:3])
    document = AotGrad().run(capture, Options(written_attention="fuse"))
    assert len(document.rewrites) == 1
    (out,) = bind_interpreted(document)(*tensors)
    expected = attend(*leaves[:3])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    if expected.isnan().any():
        return
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
    mine, theirs = (torch.autograd.grad((x * weights).sum(), leaves, allow_unused=True) for x in (out, expected))
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
