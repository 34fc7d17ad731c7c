"""Attention in the forms of `programs` becomes one call, which computes what eager does, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from aotgrad import AotGrad, Options, bind_interpreted
from aotgrad.testing import capture_by_torch_function
from aotgrad.testing.attention_programs import (
    ADDED,
    BATCH,
    CAUSAL,
    FILLED,
    HEADS,
    LENGTH,
    LOW,
    PLAIN,
    Attention,
    nano_gpt,
    qkv,
    t5,
)
from stagewire.grad import Grad

pytestmark = pytest.mark.usefixtures("any_kernel")
FUSE = Options(written_attention="fuse")


def fused(program: Attention, inputs: list[torch.Tensor]) -> tuple[Grad, tuple[torch.Tensor, ...]]:
    """The program with the attention as one op, and the tensors that it takes."""
    capture, tensors = capture_by_torch_function(program, inputs)
    document = AotGrad().run(capture, FUSE)
    assert [(note.what, note.refused) for note in document.rewrites] == [("attention", False)]
    return document, tensors


def is_causal(document: Grad) -> bool:
    """Whether the kernel is told so, and no rows are looked for that are masked as a whole."""
    targets = [node.target for node in document.joint.nodes]
    (call,) = (node for node in document.joint.nodes if node.target.endswith("flash_attention_for_cpu.default"))
    return call.args[4:5] == (True,) and "aten.amax.default" not in targets


def check(program: Attention, mine: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float = 1e-5) -> Grad:
    """Results and gradients as eager's, by the kernels of the CPU."""
    document, tensors = fused(program, mine)
    (out,) = bind_interpreted(document)(*tensors)
    expected = program(*theirs)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert out.stride() == expected.stride()
    for result in (out, expected):
        (result.float() * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)
    return document


@pytest.mark.parametrize("program", PLAIN, ids=lambda program: program.__name__)
def test_without_mask(program: Attention) -> None:
    document = check(program, qkv(), qkv())
    assert not is_causal(document)
    assert not any("softmax" in node.target for node in document.joint.nodes)


@pytest.mark.parametrize("program", PLAIN, ids=lambda program: program.__name__)
def test_half_precision(program: Attention) -> None:
    check(program, qkv(dtype=torch.bfloat16), qkv(dtype=torch.bfloat16), 5e-2)


@pytest.mark.parametrize("program", CAUSAL, ids=lambda program: program.__name__)
def test_a_mask_of_literals_is_known(program: Attention) -> None:
    """Every later key is masked: kernels need no mask for that."""
    assert is_causal(check(program, qkv(), qkv()))


@pytest.mark.parametrize("shape", [(BATCH, 1, 1, LENGTH), (1, HEADS, LENGTH, LENGTH), (LENGTH, LENGTH), (LENGTH,)])
@pytest.mark.parametrize("program", ADDED, ids=lambda program: program.__name__)
def test_added_mask(program: Attention, shape: tuple[int, ...]) -> None:
    """The mask has a gradient as well."""
    mine, theirs = ([*qkv(), torch.linspace(-2, 2, 7)[torch.arange(torch.Size(shape).numel()) % 7]] for _ in range(2))
    for inputs in (mine, theirs):
        inputs[3] = inputs[3].view(shape).clone().requires_grad_()
    check(program, mine, theirs)


@pytest.mark.parametrize("program", FILLED, ids=lambda program: program.__name__)
def test_filled_mask(program: Attention) -> None:
    mask = torch.ones(LENGTH, LENGTH).tril()[None, None]
    check(lambda q, k, v: program(q, k, v, mask), qkv(), qkv())


@pytest.mark.parametrize("program", FILLED, ids=lambda program: program.__name__)
def test_rows_that_are_filled_as_a_whole(program: Attention) -> None:
    """NaN where -inf is filled in (in the output of these rows alone), else the mean of the values; no gradient."""
    mask = torch.ones(BATCH, 1, LENGTH, LENGTH)
    mask[1, :, 3:6] = 0
    if program is nano_gpt:
        with torch.no_grad():
            document, tensors = fused(lambda q, k, v: program(q, k, v, mask), qkv())
            (out,) = bind_interpreted(document)(*tensors)
            torch.testing.assert_close(out, program(*qkv(), mask), equal_nan=True)
        assert out.isnan().any()
    else:
        check(lambda q, k, v: program(q, k, v, mask), qkv(), qkv())


@pytest.mark.parametrize("low", [LOW, LOW / 3, -1e4, -float("inf")])
def test_rows_that_are_masked_by_addition(low: float) -> None:
    """Rows of one low number, of it and of -inf (masks added up), and of -inf."""
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH)
    mask[1, :, 3:6] = low
    mask[0, :, 5] = torch.where(torch.arange(LENGTH) % 2 > 0, low, -float("inf"))
    mask[0, :, 7, 4:] = low
    with torch.no_grad():
        document, tensors = fused(lambda q, k, v: t5(q, k, v, mask), qkv())
        (out,) = bind_interpreted(document)(*tensors)
        expected = t5(*qkv(), mask)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4 if low != -1e4 else 2e-3, equal_nan=True)
    assert expected.isnan().any() == (low == -float("inf"))


def test_the_gradient_of_rows_that_are_masked_by_addition() -> None:
    """Where the row has no gradient of its own, nothing of it reaches a key; the query has eager's gradient anyway."""
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH)
    mask[1, :, 3:6] = LOW
    mine, theirs = qkv(), qkv()
    document, tensors = fused(lambda q, k, v: t5(q, k, v, mask), mine)
    (out,) = bind_interpreted(document)(*tensors)
    expected = t5(*theirs, mask)
    for of_all in (True, False):
        found = []
        for result, inputs in ((out, mine), (expected, theirs)):
            gradient = torch.linspace(-1, 1, result.numel()).view(result.shape).clone()
            gradient[1, :, 3:6] *= of_all
            found.append(torch.autograd.grad(result, inputs, gradient, retain_graph=True))
        query, key, value = zip(*found, strict=True)
        torch.testing.assert_close(*query)
        torch.testing.assert_close(*value)
        assert torch.allclose(*key, atol=1e-5) != of_all


def as_on_a_gpu(weights: torch.Tensor, chance: float, train: bool) -> torch.Tensor:
    return torch.native_dropout(weights, chance, train)[0]


@pytest.mark.parametrize("dropout", [torch.dropout, as_on_a_gpu])
def test_dropout_is_the_kernels(dropout: Callable[..., torch.Tensor]) -> None:
    """With probability 1/2 every weight is dropped or doubled."""

    def program(q, k, v):
        return dropout((q @ k.mT).softmax(-1), 0.5, True) @ v

    inputs = [torch.zeros(BATCH, HEADS, LENGTH, LENGTH) for _ in range(2)]
    inputs.append(torch.eye(LENGTH).expand(BATCH, HEADS, LENGTH, LENGTH).contiguous())
    document, _ = fused(program, inputs)
    torch.manual_seed(1)
    (weights,) = bind_interpreted(document)(*inputs)
    assert set((weights * LENGTH).unique().tolist()) == {0.0, 2.0}
    assert 0.4 < (weights == 0).float().mean() < 0.6


def windows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Windows of images as a batch, with a mask for each window of an image, as Swin has them."""
    scores = (q * 0.3) @ k.mT + bias.unsqueeze(0)
    scores = scores.view(-1, mask.shape[0], *scores.shape[1:]) + mask[None, :, None]
    return scores.flatten(0, 1).softmax(-1) @ v


def of_windows() -> list[torch.Tensor]:
    bias = torch.linspace(-1, 1, HEADS * LENGTH * LENGTH).view(HEADS, LENGTH, LENGTH).requires_grad_()
    mask = torch.arange(BATCH * LENGTH * LENGTH).view(BATCH, LENGTH, LENGTH) % 5 * -1.0
    q, k, v = (torch.cat([one, one.flip(0)]).detach().requires_grad_() for one in qkv())
    return [q, k, v, bias, mask.requires_grad_()]


def test_a_mask_for_part_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes as large as the scores, which is worth it for the kernel of FlexAttention alone."""
    capture, _ = capture_by_torch_function(windows, of_windows())
    (note,) = AotGrad().run(capture, FUSE).rewrites
    assert note.refused
    assert note.reason == "a mask is for part of the leading sizes"
    monkeypatch.setattr("aotgrad.stage.choose", lambda *_: "flex")
    check(windows, of_windows(), of_windows())
