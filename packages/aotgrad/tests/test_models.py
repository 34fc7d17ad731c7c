"""Networks, inference and training: outputs, every gradient, buffers and the random stream equal eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aotgrad import AotGrad, bind_interpreted, cut
from aotgrad.ops import is_random
from aotgrad.testing import capture_by_torch_function
from stagewire.prim import Prim
from stagewire.verify import verify


class ConvNet(nn.Module):
    """Convolutions, batch norm with running statistics, a residual sum in place, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(8, momentum=None)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x)), inplace=True), 3, 2, 1)
        y = self.norm2(self.conv2(x))
        y += x
        return self.head(torch.flatten(F.adaptive_avg_pool2d(F.relu(y), 1), 1))


class Decoder(nn.Module):
    """A small causal transformer with dropout, its head tied to its embedding."""

    def __init__(self, dropout: float, fused: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(dropout))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.tokens.weight
        self.dropout, self.fused = dropout, fused

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = (h.view(n, t, 2, c // 2).transpose(1, 2) for h in self.qkv(x).split(c, 2))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
            y = F.dropout(scores.softmax(-1), self.dropout, self.training) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, c))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.dropout(self.tokens(ids), self.dropout, self.training)
        x = x + self.attend(self.norm1(x))
        logits = self.head(x + self.mlp(self.norm2(x)))
        return logits, F.cross_entropy(logits[:, :-1].reshape(-1, 50), ids[:, 1:].reshape(-1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.cell = nn.GRU(6, 7, batch_first=True, bidirectional=True), nn.LSTMCell(14, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(x)
        h, c = self.cell(y[:, 0])
        return self.cell(y[:, 1], (h, c))[0]


def ids() -> torch.Tensor:
    return torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(5))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "conv_net": (ConvNet, lambda: torch.randn(4, 3, 16, 16)),
    "decoder": (lambda: Decoder(0.0, True), ids),
    "decoder_dropout": (lambda: Decoder(0.2, True), ids),
    "decoder_by_hand": (lambda: Decoder(0.2, False), ids),
    "recurrent": (Recurrent, lambda: torch.randn(2, 4, 6)),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), lambda: torch.randn(2, 5, 16)),
    "norms": (
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.InstanceNorm1d(8, affine=True)),
        lambda: torch.randn(2, 4, 9),
    ),
}


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors of a network's result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    items = result.values() if hasattr(result, "values") and not isinstance(result, torch.Tensor) else result
    return [t for t in items if isinstance(t, torch.Tensor)]


def check(model: nn.Module, train: bool, *args: torch.Tensor, **named: torch.Tensor) -> Prim:
    """Compare two steps of `model` with those of its bound Grad."""
    model.train(train)
    recorded, eager = copy.deepcopy(model), copy.deepcopy(model)
    keys = tuple(named)
    given = [*args, *named.values()]

    def call(network: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return tensors_of(network(*inputs[: len(args)], **dict(zip(keys, inputs[len(args) :], strict=True))))

    with torch.set_grad_enabled(train):
        capture, inputs = capture_by_torch_function(lambda *i: call(recorded, *i), given)
    names = {id(t): n for n, t in [*recorded.named_parameters(), *recorded.named_buffers()]}
    ours = dict([*model.named_parameters(), *model.named_buffers()])
    grad = AotGrad().run(capture)
    verify(grad)
    parts = cut(grad)
    bound = bind_interpreted(parts)
    for _ in range(2):
        with torch.set_grad_enabled(train):
            torch.manual_seed(8)
            got = bound(*[ours[names[id(t)]] if id(t) in names else t for t in inputs])
            after = torch.rand(2)
            torch.manual_seed(8)
            expected = call(eager, *given)
            assert torch.equal(after, torch.rand(2))
        torch.testing.assert_close(list(got), expected, rtol=0, atol=0)
        if train:
            sum(t.square().mean() for t in got if t.requires_grad).backward()
            sum(t.square().mean() for t in expected if t.requires_grad).backward()
    for (name, mine), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(
            mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
        )
    for mine, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    return parts


@contextmanager
def without_fused_encoder() -> Iterator[None]:
    """Eager has one fused kernel for an encoder layer in inference, which is not taken while calls are recorded."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, train: bool) -> None:
    torch.manual_seed(1)
    build, batch = NETWORKS[name]
    with without_fused_encoder():
        grad = check(build(), train, batch())
    assert (grad.backward is not None) == train
    if train:
        assert not any(is_random(node) for node in grad.backward.nodes)


def test_many_threads_trace_at_once() -> None:
    captures = []
    for name in ("conv_net", "decoder_by_hand", "recurrent"):
        build, batch = NETWORKS[name]
        captures.append(capture_by_torch_function(build(), [batch()])[0])
    captures.append(capture_by_torch_function(nn.LSTM(4, 5), [torch.randn(3, 2, 4)])[0])
    expected = [AotGrad().run(capture) for capture in captures]
    before = torch.backends.mkldnn.enabled
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: AotGrad().run(captures[number % 4]), range(12)))
    assert all(grad == expected[number % 4] for number, grad in enumerate(found))
    assert torch.backends.mkldnn.enabled == before


def test_an_lstm_without_gradients_is_one_call_of_its_library() -> None:
    model, x = nn.LSTM(4, 5, 2), torch.randn(3, 2, 4)
    with torch.no_grad():
        grad = check(model, False, x)
    layers = [node.target for node in grad.forward.nodes if "rnn_layer" in node.target]
    expected = 2 if torch.backends.mkldnn.is_available() else 0
    assert len(layers) == expected


@pytest.mark.parametrize("bias", [True, False])
def test_an_lstm_with_gradients_is_a_call_in_each_direction(bias: bool) -> None:
    grad = check(nn.LSTM(4, 5, 2, bias=bias, bidirectional=True), True, torch.randn(3, 2, 4))
    count = 4 if torch.backends.mkldnn.is_available() else 0
    for graph, part in ((grad.forward, "rnn_layer.default"), (grad.backward, "rnn_layer_backward")):
        assert graph is not None
        assert len([node.target for node in graph.nodes if part in node.target]) == count


def test_batch_norm_statistics_are_mutations_hidden_from_autograd() -> None:
    grad = check(ConvNet(), True, torch.randn(4, 3, 16, 16))
    mutated = [given for given in grad.binding.inputs if given.mutated]
    assert len(mutated) == len(grad.binding.mutations) == 6
    assert not any(mutation.under_grad for mutation in grad.binding.mutations)


def test_dropout_is_reproducible_and_differs_from_call_to_call() -> None:
    torch.manual_seed(1)
    capture, inputs = capture_by_torch_function(lambda x: F.dropout(x, 0.5), [torch.ones(64)])
    call = bind_interpreted(AotGrad().run(capture))
    torch.manual_seed(4)
    first, second = call(*inputs)[0], call(*inputs)[0]
    torch.manual_seed(4)
    assert torch.equal(first, call(*inputs)[0])
    assert not torch.equal(first, second)
    assert set(first.tolist()) == {0.0, 2.0}


def test_dropout_mask_is_the_same_in_both_directions() -> None:
    x = torch.ones(64, requires_grad=True)
    capture, inputs = capture_by_torch_function(lambda x: F.dropout(x, 0.5), [x])
    (out,) = bind_interpreted(AotGrad().run(capture))(*inputs)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": (
        "GPT2Config",
        {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0},
    ),
    "BertForSequenceClassification": (
        "BertConfig",
        {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    ),
    "LlamaForCausalLM": (
        "LlamaConfig",
        {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_transformers(name: str, train: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is no declared dependency of aotgrad")
    torch.manual_seed(2)
    tokens = torch.randint(0, 50, (2, 11))
    kind, sizes = CONFIGURATIONS[name]
    model = getattr(transformers, name)(getattr(transformers, kind)(vocab_size=60, use_cache=False, **sizes))
    labels = torch.tensor([0, 1]) if name.startswith("Bert") else tokens
    check(model, train, input_ids=tokens, **({"labels": labels} if train else {}))
