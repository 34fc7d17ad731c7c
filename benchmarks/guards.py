"""What a call pays for guards and dispatch, beside torch.compile, in one run.

    python benchmarks/guards.py [--layers 12] [--repeat 2000]

A GPT-style decoder is captured; the compiled graph is replaced by a function that returns ready
tensors, so the time of a call is guards and dispatch alone. Prints microseconds and the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from bytecap.guards import GuardProgram, compile_guards, native
from bytecap.hook import Dispatcher, Entry, FrameView, Owner, enable, entries
from stagewire.capture import Attribute, Equals, GlobalState, Guard, KeysAre, Local, TensorIs, TypeIs
from stagewire.types import TensorType


class Block(nn.Module):
    """Attention and a feed-forward part, each after a layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Token embedding, blocks, head: 12 layers have 148 parameters."""

    def __init__(self, layers: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tensor_guard(value: torch.Tensor, source: object) -> TensorIs:
    kind = TensorType(
        native.NAMES_BY_DTYPE[value.dtype],
        tuple(value.shape),
        tuple(value.stride()),
        device=str(value.device),
        requires_grad=value.requires_grad,
    )
    return TensorIs(source, kind, f"{type(value).__module__}.{type(value).__qualname__}")


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def module_guards(model: nn.Module, tokens: torch.Tensor) -> list[Guard]:
    """Everything that the capture of a module tree relies on: types, flags, hooks, structure, tensors."""
    guards: list[Guard] = [GlobalState(grad_enabled=True), tensor_guard(tokens, Local("tokens"))]
    for path, module in model.named_modules():
        source = source_of(path)
        guards.append(TypeIs(source, type(module).__qualname__))
        guards.append(Equals(Attribute(source, "training"), module.training))
        guards.append(KeysAre(Attribute(source, "_modules"), tuple(module._modules)))
        guards += [KeysAre(Attribute(source, name), ()) for name in HOOKS]
    guards += [tensor_guard(value, source_of(path)) for path, value in model.named_parameters()]
    return guards


def source_of(path: str) -> Local | Attribute:
    source: Local | Attribute = Local("self")
    for part in filter(None, path.split(".")):
        source = Attribute(source, part)
    return source


def median_us(call: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def ours(model: Decoder, tokens: torch.Tensor, repeat: int) -> tuple[float, float, GuardProgram]:
    """(call with hook, guards alone, the program)"""
    ready = torch.zeros(1)
    code = (lambda self, tokens: ready).__code__
    space: dict[str, object] = {}
    exec("def replacement(self, tokens):\n    return None", space)
    code = space["replacement"].__code__

    def callback(view: FrameView) -> Entry:
        return Entry(compile_guards(module_guards(model, tokens), view), code)

    owner = Owner(callback)
    enable(Decoder.forward.__code__, owner)
    call = Dispatcher(owner, model.forward)
    call(tokens)
    program = entries(Decoder.forward.__code__, owner)[0].guard
    called = median_us(lambda: call(tokens), repeat)
    seconds, held = program.time({"self": model, "tokens": tokens}, repeat)
    if held != repeat or owner.misses != 1:
        raise SystemExit("a guard failed in the benchmark")
    return called, seconds * 1e6, program


def torch_compile(model: Decoder, tokens: torch.Tensor, repeat: int) -> float:
    """A call through torch.compile whose graph returns at once."""

    def backend(graph: object, inputs: object) -> Callable[..., object]:
        ready = (torch.zeros(*tokens.shape, 64),)
        return lambda *args: ready

    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    compiled(tokens)
    compiled(tokens)
    return median_us(lambda: compiled(tokens), repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=2000)
    options = parser.parse_args()
    model = Decoder(options.layers)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    called, guards, program = ours(model, tokens, options.repeat)
    theirs = torch_compile(model, tokens, options.repeat)
    count = sum(1 for _ in model.parameters())
    print(f"{count} parameters, {program.node_count} values read, {program.check_count} checks")
    print(f"tensors read by {native.READING.tensors}, native state: {native.READING.native_state}")
    print(f"{'':32}{'us a call':>10}")
    print(f"{'bytecap, guards alone':32}{guards:10.2f}")
    print(f"{'bytecap, call with hook':32}{called:10.2f}")
    print(f"{'torch.compile, empty graph':32}{theirs:10.2f}")
    print(f"{'ratio':32}{called / theirs:10.3f}")


if __name__ == "__main__":
    main()
