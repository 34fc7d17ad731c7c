"""Models at many sizes: one compilation serves them, and gives what eager gives."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import bytecap
import stagefold
from integration_tests.zoo.decoding import decode
from stagefold.backends import resolve_backend

SIZES = ((2, 3), (4, 16), (64, 5), (3, 65), (7, 7), (16, 100), (2, 64))
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}


def compiled(model: torch.nn.Module, **options: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The model behind the eager backend, and what is told of its captures."""
    events: list[Any] = []
    backend, _ = resolve_backend("eager", None, None, None)
    return bytecap.optimize(model, backend, on_event=events.append, **options), events


def captures(events: list[Any]) -> list[Any]:
    """The captures; that every event is one is what is asked."""
    assert all(isinstance(event, bytecap.Captured) for event in events), events
    return events


def test_interleaved_halves_leave_nothing_to_aten(caplog: pytest.LogCaptureFixture) -> None:
    def rotated(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * 2

    call = stagefold.compile(rotated, dynamic=True, fullgraph=True)
    for size in (6, 8, 20):
        x, y = (torch.linspace(-1, 1, 3 * size).reshape(3, size).requires_grad_() for _ in range(2))
        torch.testing.assert_close(call(x), rotated(y))
        call(x).square().sum().backward()
        rotated(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert "stays with ATen" not in caplog.text


def gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=512, bos_token_id=0, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config).eval()


def bert() -> torch.nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SMALL)).eval()


def llama() -> torch.nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SMALL)).eval()


@pytest.mark.parametrize("make", [gpt2, bert, llama])
def test_one_capture_for_all_batches_and_lengths(make: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    options = {} if make is bert else {"use_cache": False}
    call, events = compiled(model)
    with torch.no_grad():
        for batch, length in SIZES:
            ids = torch.randint(0, 100, (batch, length))
            assert torch.equal(call(input_ids=ids, **options)[0], model(input_ids=ids, **options)[0])
    assert len(captures(events)) == 2


@pytest.mark.parametrize("make", [gpt2, llama])
def test_decoding_with_a_growing_cache(make: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    call, events = compiled(model)

    assert torch.equal(decode(call, 20), decode(model, 20))
    assert len(captures(events)) == 3  # the prompt, the first token, all others


@pytest.mark.parametrize("options", [{"use_cache": False}, {}], ids=str)
def test_a_callable_is_called_twice_and_every_call_runs_what_it_made(options: dict[str, Any]) -> None:
    """While it is called first with symbols, imports register classes with those that `isinstance` was asked about."""
    torch.manual_seed(0)
    model, graphs, runs = gpt2(), [], []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        collections.abc.Sized.register(type("New", (), {}))
        graphs.append(module)

        def call(*given: Any) -> Any:
            runs.append(module)
            return module(*given)

        return call

    call = stagefold.compile(model, backend=backend)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", bytecap.CaptureWarning)
        for batch, length in SIZES:
            ids = torch.randint(0, 100, (batch, length))
            assert torch.equal(call(input_ids=ids, **options)[0], model(input_ids=ids, **options)[0])
    assert len(graphs) == 2
    assert len(runs) == len(SIZES)


def test_images_of_several_sizes() -> None:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetModel(config).eval()
    call, events = compiled(model)
    with torch.no_grad():
        for height, width in ((32, 32), (48, 56), (64, 32), (40, 72)):
            images = torch.randn(2, 3, height, width)
            assert torch.equal(call(pixel_values=images)[0], model(pixel_values=images)[0])
    assert len(captures(events)) == 2


def test_the_options_of_compile() -> None:
    calls = []

    def program(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls)) if not stagefold.is_compiling() else None
        return x * x.shape[0]

    for dynamic in (True, None, False):
        double = stagefold.compile(program, backend="eager", dynamic=dynamic, fullgraph=True)
        for size in (3, 4, 5):
            assert torch.equal(double(torch.ones(size)), torch.full((size,), float(size)))
    assert calls == []
