"""What stays as it is written, and the reason that the document gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from aotgrad import AotGrad, Options, bind_interpreted
from aotgrad.errors import DoubleBackward
from aotgrad.testing import capture_by_torch_function
from aotgrad.testing.attention_programs import qkv
from aotgrad.tracer.fused_attention import choose
from stagewire.capture import Capture, Checkpoint
from stagewire.grad import Rewrite

FUSE = Options(written_attention="fuse")
pytestmark = pytest.mark.usefixtures("any_kernel")


def noted(capture: Capture, options: Options = FUSE) -> tuple[Rewrite, ...]:
    """What the document says of attention; where it was refused, no kernel of attention is in it."""
    document = AotGrad().run(capture, options)
    if all(note.refused for note in document.rewrites):
        assert not any("scaled_dot_product" in node.target for node in document.joint.nodes)
    return document.rewrites


def weights_returned(q: Any, k: Any, v: Any) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def scores_used(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.mean()


def detached(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT).detach().softmax(-1) @ v


def half_detached(q: Any, k: Any, v: Any) -> Any:
    q = q[0, :, :8]
    return torch.bmm(torch.bmm(q, q.detach()).softmax(-1), v[0, :, :8])


def no_gradients_inside(q: Any, k: Any, v: Any) -> Any:
    with torch.no_grad():
        weights = (q @ k.mT).softmax(-1)
    return weights @ v


def query_written(q: Any, k: Any, v: Any) -> Any:
    q = q.detach() * 1
    scores = q @ k.detach().mT
    q.zero_()
    return scores.softmax(-1) @ v + q


def mask_written(q: Any, k: Any, v: Any) -> Any:
    mask = q.mean((0, 1, 3)) * 1
    scores = q @ k.mT + mask
    mask.view(-1)[:3] = 5
    return scores.softmax(-1) @ v


def output_written(q: Any, k: Any, v: Any) -> Any:
    out = (q @ k.mT).softmax(-1) @ v
    out += q
    return out


def other_dimension(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT).softmax(2) @ v


def over_queries(q: Any, k: Any, v: Any) -> Any:
    return torch.einsum("bhij,bhid->bhjd", (q @ k.mT).softmax(-1), v)


def capped(q: Any, k: Any, v: Any) -> Any:
    return torch.tanh(q @ k.mT).softmax(-1) @ v


def layer(q: Any, k: Any, v: Any) -> Any:
    return (q[0] @ k[0, 0].mT).softmax(-1) @ v[0]


def filled_with_a_score(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT).masked_fill(torch.ones(16, 16).triu(1) > 0, -5.0).softmax(-1) @ v


def masked_after(q: Any, k: Any, v: Any) -> Any:
    return ((q @ k.mT).softmax(-1) * torch.ones(16)) @ v


def wide_mask(q: Any, k: Any, v: Any) -> Any:
    return ((q.bfloat16() @ k.bfloat16().mT) + torch.linspace(0, 1, 16)).softmax(-1).bfloat16() @ v.bfloat16()


def scaled_by_key(q: Any, k: Any, v: Any) -> Any:
    return ((q @ k.mT) * torch.linspace(0, 1, 16)).softmax(-1) @ v


def one_key_for_all_heads(q: Any, k: Any, v: Any) -> Any:
    return torch.einsum("bhij,bjd->bhid", torch.einsum("bhid,bjd->bhij", q, k[:, 0]).softmax(-1), v[:, 0])


def one_value_for_all_heads(q: Any, k: Any, v: Any) -> Any:
    return torch.einsum("bhij,bjd->bhid", (q @ k.mT).softmax(-1), v[:, 0])


REASONS: dict[Callable[..., Any], str] = {
    weights_returned: "the weights are used elsewhere too",
    scores_used: "the scores are used elsewhere too",
    detached: "the scores or weights are detached, or query and key are",
    half_detached: "a call takes one tensor with and without its history",
    no_gradients_inside: "the grad mode or the like changes inside of it",
    query_written: "an operand may be written before the output is computed",
    mask_written: "an operand may be written before the output is computed",
    output_written: "its output is written, of which a kernel makes the gradient",
    other_dimension: "the softmax is not over the last dimension",
    over_queries: "the weights are not summed over the last dimension with the values",
    one_key_for_all_heads: "the weights are not summed over the last dimension with the values",
    one_value_for_all_heads: "the weights are not summed over the last dimension with the values",
    layer: "the scores are a product of another kind",
    capped: "aten.tanh.default makes the scores",
    filled_with_a_score: "aten.masked_fill.Scalar makes the scores",
    wide_mask: "the mask that is added is float32, the output is bfloat16",
    scaled_by_key: "the scores are scaled key by key",
}


@pytest.mark.parametrize("program", REASONS, ids=lambda program: program.__name__)
def test_reason(program: Callable[..., Any]) -> None:
    capture, _ = capture_by_torch_function(program, qkv())
    assert [(note.reason, note.refused) for note in noted(capture)] == [(REASONS[program], True)]


def test_masked_weights_are_no_attention_of_a_kernel() -> None:
    capture, _ = capture_by_torch_function(masked_after, qkv())
    assert noted(capture) == ()


def test_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aotgrad.stage.choose", choose)
    capture, _ = capture_by_torch_function(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, qkv())
    (note,) = AotGrad().run(capture).rewrites
    assert note.refused
    assert note.reason == "no fused kernel of the device takes it"
    assert note.line is not None
    assert note.line.file == __file__


def test_too_many_heads() -> None:
    inputs = [torch.zeros(70_000, 2, 1) for _ in range(3)]
    capture, _ = capture_by_torch_function(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, inputs)
    (note,) = noted(capture)
    assert note.reason == "there are more heads than blocks in a dimension of a grid"


def test_a_checkpoint_is_not_crossed() -> None:
    capture, _ = capture_by_torch_function(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, qkv())
    for checkpoint, refused in ((Checkpoint(0, 2), True), (Checkpoint(0, 4), False)):
        (note,) = noted(replace(capture, checkpoints=(checkpoint,)))
        assert note.refused == refused


def test_gradients_inside_of_a_program() -> None:
    """They may be differentiated; the gradient of a fused kernel may not."""

    def program(q, k, v):
        out = (q @ k.mT).softmax(-1) @ v
        (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
        return gradient.square().sum()

    capture, _ = capture_by_torch_function(program, qkv())
    assert noted(capture) == ()


class TestMultiHead:
    """`multi_head_attention_forward` writes attention out where it is asked for weights."""

    @staticmethod
    def taken(read: bool = False, **options: Any) -> tuple[Any, Any]:
        dropout = options.pop("dropout", 0.0)
        heads = torch.nn.MultiheadAttention(16, 4, dropout=dropout)
        x = torch.randn(5, 2, 16)

        def program(x):
            out, weights = heads(x, x, x, **options)
            return (out, weights) if read else out

        capture, tensors = capture_by_torch_function(program, [x])
        document = AotGrad().run(capture, FUSE)
        if not read and not dropout:
            torch.testing.assert_close(bind_interpreted(document)(*tensors)[0], program(x))
        return document, document.rewrites

    def test_nobody_uses_the_weights(self) -> None:
        found, (note,) = self.taken()
        assert not note.refused
        assert not any("softmax" in node.target for node in found.joint.nodes)

    def test_they_are_used(self) -> None:
        _, (note,) = self.taken(read=True)
        assert note.reason == "the weights are used elsewhere too"

    def test_a_mask(self) -> None:
        _, (note,) = self.taken(attn_mask=torch.ones(5, 5).triu(1) > 0)
        assert note.reason == "all keys of a query may be masked"

    def test_dropout(self) -> None:
        _, (note,) = self.taken(dropout=0.1)
        assert note.reason == "the weights are dropped"

    def test_they_are_not_asked_for(self) -> None:
        assert self.taken(need_weights=False)[1] == ()


def dropped(q: Any, k: Any, v: Any) -> Any:
    return torch.dropout((q @ k.mT).softmax(-1), 0.3, True) @ v


def test_random_numbers_of_the_program() -> None:
    capture, _ = capture_by_torch_function(dropped, qkv())
    (note,) = noted(capture, Options(written_attention="without_dropout"))
    assert note.refused
    assert note.reason == "a kernel draws other random numbers than the dropout of the weights"


def test_the_gradient_of_a_gradient_is_of_what_is_written() -> None:
    plain, _ = capture_by_torch_function(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, qkv())
    second = AotGrad().run(plain, Options(gradient_order=1))
    assert not any("attention" in node.target for node in second.joint.nodes)
    capture, _ = capture_by_torch_function(dropped, qkv())
    assert not AotGrad().run(capture).rewrites[0].refused
    with pytest.raises(DoubleBackward, match="dropped in a fused kernel"):
        AotGrad().run(capture, Options(gradient_order=1))
    AotGrad().run(capture, Options(gradient_order=1, written_attention="without_dropout"))


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return (q @ k.mT + bias).softmax(-1) @ v


@pytest.mark.parametrize("has_gradient", [False, True])
def test_masks_with_a_gradient(has_gradient: bool) -> None:
    """They are fused on demand alone; without gradients a bias is a mask like others."""
    q, k, v = qkv()
    bias = torch.zeros(q.shape[-2], k.shape[-2], requires_grad=True)
    for grad_mode, learned, refused in (
        (True, False, has_gradient),
        (True, True, False),
        (False, False, False),
    ):
        with torch.set_grad_enabled(grad_mode):
            capture, _ = capture_by_torch_function(biased, [q, k, v, bias if has_gradient else bias.detach()])
        notes = noted(capture, Options(written_attention="fuse" if learned else "auto"))
        assert [note.refused for note in notes] == [refused]


def test_one_that_is_refused_leaves_the_next_alone() -> None:
    def program(q: Any, k: Any, v: Any, bias: Any) -> Any:
        q, k, v = (x.flatten(0, 1) for x in (q, k.mT, v))
        out = (torch.bmm(q, k) + bias).softmax(-1) @ v
        return torch.bmm(out, k).softmax(-1) @ v

    mine, theirs = ([*qkv(), torch.linspace(-1, 1, 16).requires_grad_()] for _ in range(2))
    capture, tensors = capture_by_torch_function(program, mine)
    document = AotGrad().run(capture)
    assert [note.refused for note in document.rewrites] == [True, False]
    (out,), expected = bind_interpreted(document)(*tensors), program(*theirs)
    torch.testing.assert_close(out, expected)
    found = [torch.autograd.grad(x.sum(), given) for x, given in ((out, mine), (expected, theirs))]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
