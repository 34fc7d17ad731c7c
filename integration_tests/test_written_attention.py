"""Attention that a program writes out, compiled: by the fused kernels of an NVIDIA GPU, as it stands on a CPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import stagefold
from aotgrad import AotGrad
from aotgrad.testing.attention_programs import ADDED, BATCH, CAUSAL, FILLED, HEADS, LENGTH, PLAIN, Attention, qkv, t5
from integration_tests.zoo.devices import NEEDS_GPU, ON_GPU
from integration_tests.zoo.traces import traced
from stagefold.pipeline import stage_options
from stagewire.grad import Grad

LOW = torch.finfo(torch.float32).min

FUSE = {"aotgrad.written_attention": "fuse"}
"""Wherever a kernel takes it, though its mask have a gradient."""


def documents(directory: Path) -> list[Grad]:
    found = traced(directory, "grad")
    assert found
    return found


def kernels(document: Grad) -> list[str]:
    forward = [node.target.split(".")[1] for node in document.joint.nodes if node.phase == "forward"]
    return [name for name in forward if "_scaled_dot_product" in name or name == "flex_attention"]


def moved(inputs: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    return [x.detach().to("cuda", dtype).requires_grad_(x.requires_grad) for x in inputs]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-9))


def check(program: Attention, inputs: list[torch.Tensor], dtype: torch.dtype, directory: Path) -> Grad:
    """Result and gradients as near to those in float64 as eager's are."""
    results = []
    with torch.device("cuda"):
        compiled = stagefold.compile(program, fullgraph=True, options={**FUSE, "trace_dir": directory, "cache": False})
        for function, kind in ((program, torch.float64), (program, dtype), (compiled, dtype)):
            given = moved(inputs, kind)
            out = function(*given)
            weights = torch.linspace(-1, 1, out.numel(), dtype=kind).view(out.shape)
            leaves = [x for x in given if x.requires_grad]
            results.append((out, *torch.autograd.grad((out * weights).sum(), leaves)))
    exact, eager, mine = results
    assert mine[0].stride() == eager[0].stride()
    allowed = 2e-2 if dtype is torch.bfloat16 else 1e-5
    for number, (a, b, c) in enumerate(zip(mine, eager, exact, strict=True)):
        assert distance(a, c) < 2 * distance(b, c) + allowed, number
    (document,) = documents(directory)
    assert [note.refused for note in document.rewrites] == [False]
    assert len(kernels(document)) == 1
    return document


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
class TestKernels:
    pytestmark = ON_GPU

    @pytest.mark.parametrize("program", [*PLAIN, *CAUSAL], ids=lambda program: program.__name__)
    def test_without_mask(self, program: Attention, dtype: torch.dtype, tmp_path: Path) -> None:
        check(program, qkv(), dtype, tmp_path)

    @pytest.mark.parametrize("shape", [(BATCH, 1, 1, LENGTH), (1, HEADS, LENGTH, LENGTH), (LENGTH,)])
    @pytest.mark.parametrize("program", ADDED, ids=lambda program: program.__name__)
    @pytest.mark.parametrize("has_gradient", [False, True])
    def test_added(
        self, program: Attention, shape: tuple[int, ...], has_gradient: bool, dtype: torch.dtype, tmp_path: Path
    ) -> None:
        mask = torch.linspace(-2, 2, torch.Size(shape).numel()).view(shape).requires_grad_(has_gradient)
        check(program, [*qkv(), mask], dtype, tmp_path)

    @pytest.mark.parametrize("has_gradient", [False, True])
    @pytest.mark.parametrize("length", [50, 129])
    def test_rows_at_any_place(self, length: int, has_gradient: bool, dtype: torch.dtype, tmp_path: Path) -> None:
        mask = torch.linspace(-2, 2, HEADS * length * length).view(1, HEADS, length, length)
        document = check(t5, [*qkv(length), mask.requires_grad_(has_gradient)], dtype, tmp_path)
        assert not has_gradient or kernels(document) == ["_scaled_dot_product_efficient_attention"]

    @pytest.mark.parametrize("program", FILLED, ids=lambda program: program.__name__)
    def test_filled(self, program: Attention, dtype: torch.dtype, tmp_path: Path) -> None:
        check(program, [*qkv(), torch.ones(LENGTH, LENGTH).tril()[None, None]], dtype, tmp_path)

    @pytest.mark.parametrize("program", FILLED[1:], ids=lambda program: program.__name__)
    def test_rows_that_are_filled_as_a_whole(self, program: Attention, dtype: torch.dtype, tmp_path: Path) -> None:
        mask = torch.ones(BATCH, 1, LENGTH, LENGTH)
        mask[1, :, 3:6] = 0
        check(program, [*qkv(), mask], dtype, tmp_path)

    @pytest.mark.parametrize("low", [LOW, -1e9, -float("inf")])
    def test_rows_that_are_masked_by_addition(self, low: float, dtype: torch.dtype) -> None:
        mask = torch.zeros(BATCH, 1, LENGTH, LENGTH)
        mask[1, :, 3:6] = torch.tensor(low).clamp(min=torch.finfo(dtype).min if low > -float("inf") else low)
        given = [*moved(qkv(), dtype), mask.to("cuda", dtype)]
        with torch.no_grad():
            found = stagefold.compile(t5, fullgraph=True)(*given)
            expected = t5(*(x.float() for x in given))
        tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert found.isnan().any() == (low == -float("inf"))

    def test_the_gradient_of_what_is_masked_as_a_whole(self, dtype: torch.dtype) -> None:
        """Where nobody looks at such rows, gradients are finite and eager's."""
        mask = torch.zeros(BATCH, 1, LENGTH, LENGTH, device="cuda", dtype=dtype)
        mask[1, :, 3:6] = torch.finfo(dtype).min
        found = []
        for function in (t5, stagefold.compile(t5, fullgraph=True)):
            given = moved(qkv(), dtype)
            out = function(*given, mask)
            weights = torch.linspace(-1, 1, out.numel(), device="cuda", dtype=dtype).view(out.shape).clone()
            weights[1, :, 3:6] = 0
            found.append(torch.autograd.grad(out, given, weights))
        tolerance = 5e-2 if dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_mask", [False, True])
def test_lengths_that_change(has_mask: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """One program for all lengths but the first."""

    def program(q, k, v, mask):
        scores = q @ k.transpose(-2, -1) * 0.125
        return (scores + mask if has_mask else scores).softmax(-1) @ v

    compiled = stagefold.compile(program, options={"trace_dir": tmp_path, "cache": False})
    for length in (32, 50, 64, 130):
        given = moved(qkv(length), dtype)
        mask = torch.linspace(-1, 1, length, device="cuda", dtype=dtype)
        found = []
        for function in (compiled, program):
            out = function(*given, mask)
            found.append((out, *torch.autograd.grad(out.float().square().sum(), given)))
        tolerance = 5e-2 if dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)
    made = documents(tmp_path)
    assert len(made) <= 3
    assert all(kernels(document) for document in made)


class Block(nn.Module):
    """Attention of nanoGPT, with dropout of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.dropped = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (y.view(batch, length, 2, 32).transpose(1, 2) for y in self.project(x).split(64, dim=2))
        weights = self.dropped(F.softmax(q @ k.transpose(-2, -1) / 32**0.5, dim=-1))
        return self.out((weights @ v).transpose(1, 2).contiguous().view(batch, length, 64))


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("rng", ["default", "eager"])
def test_dropout(rng: str, tmp_path: Path) -> None:
    """The kernel draws its own mask, from the seed; `rng="eager"` keeps the program's."""
    torch.manual_seed(0)
    block, x = Block().cuda().bfloat16(), torch.randn(4, 64, 64, device="cuda", dtype=torch.bfloat16)
    compiled = stagefold.compile(block, options={"rng": rng, "trace_dir": tmp_path, "cache": False})
    found: list[Any] = []
    for function in (compiled, compiled, block):
        torch.manual_seed(5)
        out = function(x)
        out.float().square().sum().backward()
        found.append((out, block.project.weight.grad.clone()))
        block.zero_grad()
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    (document,) = documents(tmp_path)
    assert len(kernels(document)) == (rng == "default")
    if rng == "eager":
        torch.testing.assert_close(found[0][0], found[2][0], rtol=5e-2, atol=5e-2)
        return
    mean = torch.stack([compiled(x) for _ in range(200)]).float().mean(0)
    block.eval()
    assert distance(mean, block(x).float()) < 0.2


def test_a_cpu_keeps_what_is_written(tmp_path: Path) -> None:
    """There the products are as fast, and faster in half precision."""
    compiled = stagefold.compile(PLAIN[0], options={"trace_dir": tmp_path, "cache": False})
    torch.testing.assert_close(compiled(*qkv()), PLAIN[0](*qkv()))
    (document,) = documents(tmp_path)
    assert [note.refused for note in document.rewrites] == [True]
    assert not kernels(document)


def test_which_kernels_may_be_taken_is_guarded() -> None:
    """What they give lies in memory in different orders."""
    given = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in qkv()]
    compiled, found = stagefold.compile(F.scaled_dot_product_attention, fullgraph=True), []
    for kernel in (None, SDPBackend.MATH, None):
        with sdpa_kernel(kernel) if kernel is not None else nullcontext():
            out, expected = compiled(*given), F.scaled_dot_product_attention(*given)
        assert out.stride() == expected.stride()
        found.append(out.stride())
    assert found[0] == found[2] != found[1]


def test_kernels_that_the_program_names() -> None:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        with sdpa_kernel(SDPBackend.MATH):
            return (
                first,
                F.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
                F.scaled_dot_product_attention(q, k, v),
            )

    results = []
    for function in (program, stagefold.compile(program, fullgraph=True)):
        given = [one.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for one in qkv()]
        torch.manual_seed(3)
        found = function(*given)
        gradients = torch.autograd.grad(sum(one.square().sum() for one in found), given)
        results.append((*found, *gradients))
        assert torch.backends.cuda.flash_sdp_enabled()
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert [one.stride() for one in results[0][:3]] == [one.stride() for one in results[1][:3]]


class Softmax(torch.autograd.Function):
    """With a gradient that is not that of softmax."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.5


def test_a_gradient_of_its_own_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, were there any, are for attention that autograd differentiates itself."""
    monkeypatch.setattr("aotgrad.stage.choose", lambda *_: "any")

    def program(q: Any, k: Any, v: Any) -> torch.Tensor:
        return Softmax.apply(q @ k.mT) @ v

    found = []
    for function in (program, stagefold.compile(program, options={"cache": False})):
        given = qkv()
        found.append(torch.autograd.grad(function(*given).square().sum(), given))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_options() -> None:
    def chosen(options: dict[str, Any]) -> Any:
        parsed = stagefold.options.parse_options(None, options)
        return stage_options("aotgrad", AotGrad(), parsed).written_attention

    assert chosen({}) == AotGrad.Options().written_attention == "auto"
    assert chosen({"rng": "eager"}) == "without_dropout"
    assert chosen({"numerics": "eager", "rng": "eager"}) == "keep"
    assert chosen({"numerics": "eager", "aotgrad.written_attention": "fuse"}) == "fuse"
