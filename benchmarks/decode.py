"""Decoding token by token with a static cache, on a GPU: milliseconds a token beside eager and torch.compile.

    python benchmarks/decode.py [--model 1b | 8b] [--layers N] [--places 512] [--batch 1] [--dtype bfloat16]
                                [--weights int8 | int4] [--peer] [--profile] [--generate 256]

A Llama of the shape of Llama 3.2 1B, or of Llama 3.1 8B, with random weights and 32,000 words. One step takes a token
of each sequence, writes keys and values of every layer into a `transformers.StaticCache` and gives logits; positions go
up by one. Each way of running decodes the same tokens from a cache of its own; the greatest difference of its logits
from eager's is printed beside. Times are minima over runs of 32 tokens, with one synchronisation at the end of each.
--peer: torch.compile with mode="reduce-overhead" as well. --profile: the device's time by kernel of one step, of each
way. --weights: all products but the last have weights of whole numbers, in plain operations, as libraries of
quantization keep them: int8 with a scale for each row, int4 in pairs, with a scale for each 128 of a row.
--generate: `model.generate` of so many tokens beside it, greedy, with `cache_implementation="static"`: milliseconds a
token with all that `generate` does around a step, and how many tokens are those that eager finds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator

import torch
import transformers

import stagefold

TOKENS = 32
SHAPES = {"1b": (2048, 8192, 16), "8b": (4096, 14336, 32)}
"""Width, inner width and number of layers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="1b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--places", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--weights", choices=QUANTIZED)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--generate", type=int)
    options = parser.parse_args()
    width, inner, layers = SHAPES[options.model]
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=options.layers or layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=options.places,
    )
    torch.manual_seed(0)
    with torch.device(options.device):
        model = transformers.LlamaForCausalLM(config).to(getattr(torch, options.dtype)).eval()
        tokens = torch.randint(0, config.vocab_size, (options.places, options.batch, 1))
    if options.weights:
        quantize(model.model, QUANTIZED[options.weights])
    wanted: torch.Tensor | None = None
    for name, compiler in _ways(options.peer):
        decoder = Decoder(model, config, options.places, options.batch, compiler)
        logits = decoder.run(tokens, TOKENS)
        wanted = logits if wanted is None else wanted
        error = ((logits - wanted).abs().max() / wanted.abs().max()).item()
        best = min(decoder.timed(tokens) for _ in range(4))
        print(f"{name:<32} {best * 1e3:7.3f} ms a token   difference {error:.1e}", flush=True)
        if options.profile:
            decoder.profile(tokens)
    if options.generate:
        generate(model, tokens[:16, :, 0].T.contiguous(), options.generate, options.peer)


def generate(model: transformers.LlamaForCausalLM, prompts: torch.Tensor, count: int, peer: bool) -> None:
    """`count` tokens of `model.generate` behind prompts [batch, words], each way; the second of two calls is timed."""
    forward = model.forward
    expected: list[list[int]] = []
    for name, compiler in _ways(peer):
        model.forward = compiler(forward)
        for _ in range(2):
            start = time.perf_counter()
            found = model.generate(
                prompts,
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                cache_implementation="static",
                disable_compile=True,  # what is compiled is `model.forward`, by the engine that is measured
            )
            found = found.tolist()  # waits for the device
            seconds = time.perf_counter() - start
        expected = expected or found
        equal = sum(a == b for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True))
        total = sum(map(len, expected))
        print(f"generate, {name:<32} {seconds / count * 1e3:7.3f} ms a token   {equal} of {total} equal", flush=True)
    model.forward = forward


class Int8Linear(torch.nn.Module):
    """A product with int8 weights, [out, in], of which each row has a scale."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (linear.weight.detach() / scale[:, None]).round().to(torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


class Int4Linear(torch.nn.Module):
    """A product with int4 weights, two of a row in a byte, [out, in / 2]; scales are [out, in / 128, 1]."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        groups = linear.weight.detach().unflatten(1, (-1, 128))
        scale = groups.abs().amax(2, keepdim=True) / 7
        numbers = ((groups / scale).round() + 8).to(torch.uint8).flatten(1)
        self.register_buffer("scale", scale)
        self.register_buffer("pairs", numbers[:, ::2] | numbers[:, 1::2] << 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = torch.stack((self.pairs & 15, self.pairs >> 4), -1).flatten(1).unflatten(1, (-1, 128))
        weight = (numbers.to(x.dtype) - 8) * self.scale
        return torch.nn.functional.linear(x, weight.flatten(1))


QUANTIZED = {"int8": Int8Linear, "int4": Int4Linear}


def quantize(model: torch.nn.Module, kind: Callable[[torch.nn.Linear], torch.nn.Module]) -> None:
    """Put modules of this kind in the place of all linear ones."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, kind(child))


def _ways(peer: bool) -> Iterator[tuple[str, Callable[..., object]]]:
    yield "eager", lambda step: step
    yield "stagefold", stagefold.compile
    yield "stagefold, reduce-overhead", lambda step: stagefold.compile(step, mode="reduce-overhead")
    if peer:
        yield "torch.compile, reduce-overhead", lambda step: torch.compile(step, mode="reduce-overhead")


class Decoder:
    """A model, a cache of its own, and the step that takes one token."""

    def __init__(
        self, model: torch.nn.Module, config: object, places: int, batch: int, compiler: Callable[..., object]
    ) -> None:
        self.cache = transformers.StaticCache(config=config, max_cache_len=places)

        def step(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            return model(token, position_ids=position, past_key_values=self.cache).logits

        self.device = model.device
        start = torch.zeros(batch, 1, dtype=torch.int64, device=self.device)
        with torch.no_grad():
            step(start, start)  # the cache is made
        self.step = compiler(step)

    def run(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
        """The logits of the last of `count` tokens, from an empty cache."""
        self.cache.reset()
        positions = torch.arange(count, device=self.device).view(count, 1, 1)
        with torch.no_grad():
            for token, position in zip(tokens[:count], positions, strict=True):
                logits = self.step(token, position)
        return logits.float().clone()

    def timed(self, tokens: torch.Tensor) -> float:
        """Seconds a token."""
        self._wait()
        start = time.perf_counter()
        self.run(tokens, TOKENS)
        self._wait()
        return (time.perf_counter() - start) / TOKENS

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def profile(self, tokens: torch.Tensor) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            self.run(tokens, 4)
            self._wait()
        print(found.key_averages().table(sort_by="cuda_time_total", row_limit=12, max_name_column_width=60))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning)
    main()
