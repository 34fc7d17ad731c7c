"""FlexAttention: scores and masks of programs, block masks, grouped heads, what else it returns; eager is the oracle.

On the CPU torch has no gradients of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import stagefold
import stagewire
from aotgrad import AotGrad, PartitionStage
from integration_tests.zoo.devices import DEVICES
from loopir.stage import LoopIR
from primops.stage import Primops

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTH, HEADS = 130, 4
ON_EACH = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
DOCUMENTS = {device: torch.arange(LENGTH, device=device) // 40 for device in ON_EACH}
BIAS = torch.linspace(-1, 1, 2 * LENGTH * HEADS).view(HEADS, 2 * LENGTH)
BIASES = {device: BIAS.to(device) for device in ON_EACH}
Mod = Callable[..., Tensor]


def causal(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def sliding_window(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= key) & (query - key < 20)


def same_document(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    documents = DOCUMENTS[query.device.type]
    return causal(b, h, query, key) & (documents[query] == documents[key])


def nothing(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query > 2) & causal(b, h, query, key)


def alibi(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return score + (key - query) * torch.exp2(-(h + 1.0))


def softcap(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return 20 * torch.tanh(score / 20)


def relative_bias(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return score + BIASES[score.device.type][h][query - key + LENGTH]


def moved_bias(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return score + BIAS.to(score.device)[h][query - key + LENGTH]


CASES: dict[str, tuple[Mod | None, Mod | None]] = {
    "plain": (None, None), "causal": (None, causal), "window": (softcap, sliding_window),
    "documents": (None, same_document), "alibi": (alibi, causal), "bias": (relative_bias, sliding_window),
    "moved": (moved_bias, None), "rows without a key": (alibi, nothing),
}  # fmt: skip
USING_NUMBERS = ("bias", "moved")
"""Cases whose functions compute with an int, which `dynamic=True` leaves open."""


def operands(device: str, dtype: torch.dtype = torch.float32, length: int = LENGTH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, HEADS, length, 16), (2, HEADS // 2, length, 16), (2, HEADS // 2, length, 8)]
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def block_mask(mask: Mod | None, device: str, length: int = LENGTH) -> BlockMask | None:
    return None if mask is None else create_block_mask(mask, None, None, length, length, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_eager(case: str, device: str) -> None:
    score, mask = CASES[case]
    blocks = block_mask(mask, device)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, score, blocks, enable_gqa=True, return_lse=True)

    tensors = operands(device)
    torch.testing.assert_close(stagefold.compile(attend, fullgraph=True)(*tensors), attend(*tensors))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", [None, softcap, relative_bias])
def test_one_query_of_many_keys(score: Mod | None, device: str) -> None:
    query, key, value = operands(device, length=2 * LENGTH)
    query = query[:, :, :1]

    def attend(*given: Tensor) -> Any:
        return flex_attention(*given, score, enable_gqa=True, return_lse=True)

    found = stagefold.compile(attend, fullgraph=True)(query, key, value)
    torch.testing.assert_close(found, attend(query, key, value))


def test_learned_biases_have_gradients() -> None:
    bias = torch.linspace(-1, 1, HEADS).requires_grad_()
    tensors = operands("cpu")

    def attend(*given: Tensor) -> Tensor:
        return flex_attention(*given, lambda score, b, h, q, k: score * bias[h], enable_gqa=True)

    query, key, value = tensors[0], *(each.repeat_interleave(2, 1) for each in tensors[1:])
    weights = (query @ key.mT / 4 * bias.view(HEADS, 1, 1)).softmax(-1)  # eager has no gradients on the CPU
    found = torch.autograd.grad(stagefold.compile(attend, fullgraph=True)(*tensors).square().sum(), bias)
    torch.testing.assert_close(found, torch.autograd.grad((weights @ value).square().sum(), bias))


@pytest.mark.parametrize(
    ("case", "dynamic"),
    [("window", False), ("documents", False), ("bias", False), ("window", True), ("documents", True)],
)
def test_every_document_means_the_same(case: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)  # which refuses gradients on the CPU
    score, mask = CASES[case]
    blocks, captures = block_mask(mask, "cpu"), list[stagewire.Capture]()
    tensors = [each.requires_grad_() for each in operands("cpu")]

    class Captured(Exception):
        """A capture is all that is wanted."""

    def keep(capture: stagewire.Capture) -> stagewire.Grad:
        captures.append(capture)
        raise Captured

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, score, blocks, enable_gqa=True)

    with pytest.raises(Captured):
        stagefold.compile(attend, stages={"aotgrad": keep}, options={"cache": False}, dynamic=dynamic)(*tensors)
    capture = captures[0]  # of open sizes, and then of those of the call
    named = {"query": tensors[0], "key": tensors[1], "value": tensors[2]}
    named |= {f"blocks_{name}": each for name, each in vars(blocks).items() if isinstance(each, Tensor)}
    given = [named[one.value.name] if one.value.name in named else held(one.value.name) for one in capture.inputs]
    options = AotGrad.Options(flex_attention=("cpu",))
    grad = AotGrad().run(capture, options)
    cut = PartitionStage().run(Primops().run(grad))
    documents = [capture, grad, cut, LoopIR().run(cut)]
    assert all("stagefold.flex_attention_backward" in str(document) for document in documents[1:])
    found = [stagefold.meaning(stagewire.decode(stagewire.encode(document)))(*given)[0] for document in documents]
    gradients = [torch.autograd.grad(one.square().sum(), tensors) for one in found]
    for one, of_one in zip(found[1:], gradients[1:], strict=True):
        torch.testing.assert_close(one, found[0])
        torch.testing.assert_close(of_one, gradients[0], rtol=1e-4, atol=1e-4)


def held(name: str) -> Tensor:
    """The tensor that a function of the cases captures."""
    return DOCUMENTS["cpu"] if "DOCUMENTS" in name else BIASES["cpu"]


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_rounds_once(device: str) -> None:
    tensors = operands(device, torch.bfloat16)

    def attend(*given: Tensor) -> Tensor:
        return flex_attention(*given, alibi, enable_gqa=True, scale=0.3)

    found = stagefold.compile(attend, fullgraph=True)(*tensors)
    exact = attend(*(tensor.double() for tensor in tensors))
    assert found.dtype == torch.bfloat16
    assert (found - exact).abs().max() <= 2 * (attend(*tensors) - exact).abs().max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", [None, alibi])
def test_autocast_casts_the_operands(score: Mod | None, device: str) -> None:
    tensors = operands(device)

    def attend(*given: Tensor) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return flex_attention(*given, score, enable_gqa=True, return_lse=True)

    (out, rows), tensors = stagefold.compile(attend, fullgraph=True)(*tensors), [each.bfloat16() for each in tensors]
    wanted = flex_attention(*tensors, score, enable_gqa=True, return_lse=True)
    torch.testing.assert_close((out, rows), wanted, rtol=2e-2, atol=2e-2)


def test_block_masks_are_made_in_graphs() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        blocks = create_block_mask(causal, None, None, query.shape[2], key.shape[2], device="cpu")
        return flex_attention(query, key, value, block_mask=blocks, enable_gqa=True)

    compiled = stagefold.compile(attend, fullgraph=True)
    for length in (LENGTH, 200, 256):
        tensors = operands("cpu", length=length)
        torch.testing.assert_close(compiled(*tensors), attend(*tensors))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [None, True], ids=["the second length", "dynamic"])
@pytest.mark.parametrize("case", CASES)
def test_changing_lengths_are_symbols(case: str, dynamic: bool | None, device: str, tmp_path: Path) -> None:
    """Where batches and lengths are open, too, no scores are in memory, unless a function uses an open number."""
    score, mask = CASES[case]

    def attend(query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask | None) -> Any:
        return flex_attention(query, key, value, score, blocks, enable_gqa=True, return_lse=True)

    compiled = stagefold.compile(attend, fullgraph=True, dynamic=dynamic)
    for batch, length in ((2, LENGTH), (3, 77), (4, 100), (5, 120)):
        tensors = [each.repeat(3, 1, 1, 1)[:batch] for each in operands(device, length=length)]
        blocks = block_mask(mask, device, length)
        torch.compiler.reset()  # eager's FlexAttention is compiled by torch, for a few lengths only
        torch.testing.assert_close(compiled(*tensors, blocks), attend(*tensors, blocks))
    with stagefold.set_stance("fail_on_recompile"):
        compiled(*operands(device, length=50), block_mask(mask, device, 50))
    capsule = stagefold.record(attend, *tensors, blocks, dynamic=True, to=tmp_path / "flex.capsule")
    loops, program = (str(capsule.document(capsule.runs[0], form)) for form in ("loop", "program"))
    assert ("stagefold.flex_attention" in loops) == (case not in USING_NUMBERS)
    assert "stagefold.flex_attention" not in program


def test_what_a_mod_captures_may_change() -> None:
    slope = torch.tensor([0.1, 0.2, 0.3, 0.4])

    def attend(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor) -> Tensor:
        return flex_attention(query, key, value, lambda score, b, h, q, k: score * slopes[h], enable_gqa=True)

    compiled = stagefold.compile(attend, fullgraph=True)
    for slopes in (slope, slope * 3):
        tensors = [*operands("cpu"), slopes]
        torch.testing.assert_close(compiled(*tensors), attend(*tensors))


def test_refusals_are_eagers() -> None:
    compiled = stagefold.compile(flex_attention)
    query, key, value = operands("cpu")
    for given in ((query, key, value), (query, key[:, :, :9], value), (query[0], key, value)):
        with pytest.raises(Exception) as expected:
            flex.flex_attention(*given)
        with pytest.raises(expected.type) as found:
            compiled(*given)
        assert str(found.value) == str(expected.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has gradients of FlexAttention on GPUs alone")
@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "open"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_eager(case: str, dynamic: bool | None) -> None:
    score, mask = CASES[case]
    blocks = block_mask(mask, "cuda")
    tensors = [tensor.requires_grad_() for tensor in operands("cuda")]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, score, blocks, enable_gqa=True, return_lse=True)

    def gradients(call: Callable[..., Any]) -> tuple[Tensor, ...]:
        out, rows = call(*tensors)
        return torch.autograd.grad(out.square().sum() + rows[:, :, 5:].sin().sum(), tensors)

    found = gradients(stagefold.compile(attend, fullgraph=True, dynamic=dynamic))
    torch.testing.assert_close(found, gradients(attend), rtol=1e-3, atol=1e-3)
