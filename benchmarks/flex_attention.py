"""FlexAttention beside torch.compile and eager, in one run: milliseconds of a call without gradients.

    python benchmarks/flex_attention.py [--device cuda] [--batch 4] [--heads 16] [--length 2048] [--dtype bfloat16]

The masks and scores are those of torch's own documentation. Minima of three rounds; on the CPU of one thread.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stagefold


def causal(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def alibi(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return score + (key - query) * torch.exp2(-(h + 1.0))


def softcap(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return 20 * torch.tanh(score / 20)


def milliseconds(call: Callable[[], object], device: str, times: int) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    call()
    best = float("inf")
    for _ in range(3):
        wait()
        start = time.perf_counter()
        for _ in range(times):
            call()
        wait()
        best = min(best, (time.perf_counter() - start) / times)
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="bfloat16 on a GPU, float32 on the CPU")
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--heads", type=int, default=None)
    parser.add_argument("--length", type=int, default=None)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    dtype = getattr(torch, options.dtype or ("bfloat16" if on_gpu else "float32"))
    batch, heads, length = (
        given or default
        for given, default in zip(
            (options.batch, options.heads, options.length), (4, 16, 2048) if on_gpu else (1, 8, 512), strict=True
        )
    )
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    shape = (batch, heads, length, options.width)
    query, key, value = (torch.randn(shape, device=options.device, dtype=dtype) for _ in range(3))
    blocks = create_block_mask(causal, None, None, length, length, device=options.device)
    for name, score, mask in (
        ("causal", None, blocks), ("ALiBi, causal", alibi, blocks), ("ALiBi", alibi, None), ("softcap", softcap, None),
    ):  # fmt: skip

        def call(score: object = score, mask: object = mask) -> Tensor:
            return flex_attention(query, key, value, score, mask)  # type: ignore[arg-type]

        torch._dynamo.reset()
        engines = {"stagefold": stagefold.compile(call), "torch.compile": torch.compile(call), "eager": call}
        found = {engine: milliseconds(run, options.device, 50 if on_gpu else 10) for engine, run in engines.items()}
        row = "  ".join(f"{engine} {taken:.2f} ms" for engine, taken in found.items())
        print(
            f"{name:14} {row}  {found['torch.compile'] / found['stagefold']:.2f} of torch.compile's speed", flush=True
        )


if __name__ == "__main__":
    main()
