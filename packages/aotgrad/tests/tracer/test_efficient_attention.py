"""The memory-efficient kernel in a trace, and its gradient for a mask: run here by a stand-in for the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from absint.meta import contiguous
from aotgrad import AotGrad, bind_interpreted
from aotgrad.testing import capture_by_torch_function
from aotgrad.testing.attention_programs import ADDED, CAUSAL, FILLED, HEADS, Attention, qkv, t5
from aotgrad.tracer.fused_attention import ALIGNMENT, Kernels, is_taken
from stagewire.codec import decode, encode
from stagewire.grad import Grad

ELSEWHERE = "cuda:63"
NAME = "_scaled_dot_product_efficient_attention"


def is_aligned(mask: torch.Tensor | None) -> bool:
    return mask is None or (mask.stride(-1) == 1 and not any(step % ALIGNMENT for step in mask.stride()[:-1]))


def by_length(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def scores_of(q: Any, k: Any, mask: Any, is_causal: bool, scale: float) -> torch.Tensor:
    assert is_aligned(mask), "the kernel refuses such a mask"
    scores = q @ k.mT * scale if mask is None else q @ k.mT * scale + mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -float("inf"))
    return scores


def forward(q: Any, k: Any, v: Any, mask: Any, statistics: bool, dropout: float = 0.0, is_causal: bool = False, *,
            scale: float) -> tuple[torch.Tensor, ...]:  # fmt: skip
    assert statistics
    assert not dropout
    scores = scores_of(q, k, mask, is_causal, scale)
    rows = torch.logsumexp(scores, -1)
    seed = torch.zeros((), dtype=torch.int64)
    padded = F.pad(rows, (0, -rows.shape[-1] % 32))
    return by_length(torch.exp(scores - rows[..., None]) @ v), padded, seed, seed


def backward(grad: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, rows: Any, seed: Any, offset: Any, dropout: float,
             wanted: list[bool], is_causal: bool = False, *, scale: float) -> tuple[Any, ...]:  # fmt: skip
    scores = scores_of(q, k, mask, is_causal, scale)
    weights = torch.exp(scores - rows[..., : q.shape[2], None])
    to_weights = grad @ v.mT
    to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True))
    gradients = (to_scores @ k * scale, to_scores.mT @ q * scale, weights.mT @ grad)
    keys = to_scores.shape[-1]
    of_mask = F.pad(to_scores, (0, -keys % ALIGNMENT))[..., :keys] if wanted[3] else None
    return (*map(by_length, gradients), of_mask)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eager would take this kernel everywhere; here it is what is written above."""
    monkeypatch.setattr("aotgrad.stage.choose", lambda *_: "efficient")
    chosen = Kernels("efficient", "efficient")
    monkeypatch.setattr("aotgrad.tracer.attention.kernels", lambda *_, **__: chosen)
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl(NAME, forward)
    library.impl(f"{NAME}_backward", backward)
    yield
    library._destroy()


def traced_elsewhere(
    program: Attention, inputs: list[torch.Tensor], written_attention: str = "fuse"
) -> tuple[Grad, tuple[torch.Tensor, ...]]:
    """The program of another device, moved back."""
    capture, tensors = capture_by_torch_function(program, inputs)
    there = encode(capture).replace(b'"device":"cpu"', f'"device":"{ELSEWHERE}"'.encode())
    grad = AotGrad().run(decode(there, "capture"), AotGrad.Options(written_attention=written_attention))
    back = encode(grad).replace(f'"device":"{ELSEWHERE}"'.encode(), b'"device":"cpu"')
    found, wanted = (f'{{"kind":"device","name":"{name}"}}'.encode() for name in (ELSEWHERE, "cpu"))
    return decode(back.replace(found, wanted), "grad"), tensors


def check(program: Attention, mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    grad, tensors = traced_elsewhere(program, mine)
    assert [node.phase for node in grad.joint.nodes if NAME in node.target] == ["forward", "backward"]
    (out,) = bind_interpreted(grad)(*tensors)
    expected = program(*theirs)
    assert out.stride() == expected.stride()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for result in (out, expected):
        (result * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("length", [16, 13])
def test_the_gradient_of_a_mask(length: int) -> None:
    """Also of one whose rows begin anywhere: it is padded."""
    masks = [torch.linspace(-1, 1, HEADS * length**2).view(1, HEADS, length, length) for _ in range(2)]
    mine, theirs = ([*qkv(length), mask.clone().requires_grad_()] for mask in masks)
    check(t5, mine, theirs)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("program", [*ADDED, *CAUSAL, *FILLED], ids=lambda program: program.__name__)
def test_masks(program: Attention) -> None:
    mask = [] if program in CAUSAL else [torch.ones(16, 16).tril()[None, None]]
    check(lambda q, k, v: program(q, k, v, *mask), qkv(), qkv())


@pytest.mark.usefixtures("kernel")
def test_a_mask_of_the_program_itself() -> None:
    def program(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)

    mine, theirs = ([*qkv(13), torch.linspace(-1, 1, 13).requires_grad_()] for _ in range(2))
    grad, tensors = traced_elsewhere(program, mine)
    (out,) = bind_interpreted(grad)(*tensors)
    expected = program(*theirs)
    torch.testing.assert_close(out, expected)
    for result in (out, expected):
        result.square().sum().backward()
    torch.testing.assert_close(mine[3].grad, theirs[3].grad, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_eager_is_asked_once(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each of two calls: what hides behind a boolean mask, whether dropout is fused, and by which kernel."""
    asked: list[Any] = []

    def kernels(*question: Any, **options: Any) -> Kernels:
        asked.append(question)
        return Kernels("efficient", "efficient")

    monkeypatch.setattr("aotgrad.tracer.attention.kernels", kernels)

    def program(q, k, v, mask):
        first = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return F.scaled_dot_product_attention(first, k, v, attn_mask=mask, dropout_p=dropout)

    grad, _ = traced_elsewhere(program, [*qkv(), torch.ones(16, 16).tril() > 0])
    assert sum(NAME in node.target for node in grad.joint.nodes if node.phase == "forward") == 2
    assert len(asked) == 2


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("repeated", [False, True])
def test_keys_that_heads_share_are_told_apart(repeated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for one query says whether its keys are copies for several heads each."""
    asked: list[bool] = []

    def kernels(*question: Any, shares_keys: bool, **options: Any) -> Kernels:
        asked.append(shares_keys)
        return Kernels("efficient", "efficient")

    monkeypatch.setattr("aotgrad.tracer.attention.kernels", kernels)

    def program(q, k, v):
        if repeated:
            k, v = (each[:, :1, None].expand(2, 1, 3, 16, 8).reshape(2, 3, 16, 8) for each in (k, v))
        return F.scaled_dot_product_attention(q, k + 0 if not repeated else k, v)

    q, k, v = (torch.randn(2, 3, length, 8) for length in (1, 16, 16))
    traced_elsewhere(program, [q, k, v])
    assert asked == [repeated]


def test_one_query_of_many_keys_is_written_out_where_heads_share_them() -> None:
    def meta(heads: int, length: int) -> Any:
        return contiguous((8, heads, length, 64), torch.bfloat16, torch.device(ELSEWHERE))

    query, keys, own = meta(32, 1), meta(8, 512), meta(32, 512)
    assert not is_taken("cudnn", [query, keys, keys], 0.0, mask_grad=False, shares_keys=False)
    assert not is_taken("cudnn", [query, own, own], 0.0, mask_grad=False, shares_keys=True)
    assert is_taken("cudnn", [query, own, own], 0.0, mask_grad=False, shares_keys=False)
