"""The stages of aotgrad on a GPT-style decoder, forward and backward, beside torch's own tracing, in one run.

    python benchmarks/joint_trace.py [--layers 12] [--width 256] [--repeat 5]

Prints milliseconds for the joint trace, the passes, the partition (of ATen calls) and the whole stage, and of the three
stages that stagefold.compile runs (aotgrad, primops, partition), microseconds per node, and their ratio to torch's
ahead-of-time tracing of the same module (its joint trace and min-cut partition; first and later runs).
Times are of this process's CPU, so that other load on the machine counts little.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from aotgrad import AotGrad, MinCut, PartitionStage, split
from aotgrad.passes import DEFAULT_PASSES
from aotgrad.testing import capture_by_torch_function
from aotgrad.tracer.joint import trace
from primops import Primops


class Block(nn.Module):
    """Causal attention and a feed-forward part, each after a layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=-1)
        q, k, v = (part.view(batch, length, 4, width // 4).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    """Embedding, blocks and an untied head (torch's aot_module takes no tied weights)."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 512, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of CPU, and the result."""
    start = time.process_time()
    result = run()
    return (time.process_time() - start) * 1e3, result


def best(run: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The shortest of `repeat` runs."""
    return min((timed(run) for _ in range(repeat)), key=lambda pair: pair[0])


def torch_tracing(model: nn.Module, tokens: torch.Tensor) -> float:
    """Torch's ahead-of-time tracing and partitioning, with compilers that compile nothing."""
    from torch._functorch.aot_autograd import aot_module
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def keep(graph: Any, inputs: Any) -> Any:
        return graph

    module = aot_module(model, fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    return timed(lambda: module(tokens).backward())[0] - timed(lambda: model(tokens).backward())[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, tokens = Decoder(given.layers, given.width), torch.randint(0, 512, (2, 64))
    model(tokens).backward()
    capture, _ = capture_by_torch_function(model, [tokens])
    stages = AotGrad(), Primops(), PartitionStage()

    def middle() -> Any:
        return functools.reduce(lambda document, stage: stage.run(document), stages, capture)

    first, _ = timed(middle)
    traced, joint = best(lambda: trace(capture), given.repeat)
    nodes = len(joint.graph.nodes)

    def passes() -> Any:
        result = joint
        for run_pass in DEFAULT_PASSES:
            result = run_pass(result)
        return result

    passed, clean = best(passes, given.repeat)
    cut, partition = best(lambda: MinCut()(clean), given.repeat)
    halved, parts = best(lambda: split(clean, partition), given.repeat)
    whole, _ = best(lambda: AotGrad().run(capture), given.repeat)
    three, _ = best(middle, given.repeat)
    peers = [torch_tracing(model, tokens) for _ in range(2)]
    sizes = [len(graph.nodes) for graph in (capture.graph, joint.graph, clean.graph, parts.forward, parts.backward)]
    print(f"{given.layers} layers; calls, ATen nodes traced, kept, forward, backward: {sizes}")
    print(f"  joint trace {traced:8.1f} ms   {traced / nodes * 1e3:6.1f} us a node")
    print(f"  passes      {passed:8.1f} ms\n  minimum cut {cut:8.1f} ms\n  two halves  {halved:8.1f} ms")
    print(f"  stage       {whole:8.1f} ms\n  three       {three:8.1f} ms   ({first:.1f} ms the first time)")
    print(f"  torch's     {peers[1]:8.1f} ms   ({peers[0]:.1f} ms the first time)")
    print(f"  ratio       {three / peers[1]:8.3f}      {first / peers[0]:.3f} the first time")


if __name__ == "__main__":
    main()
