"""FlexAttention beside torch.compile and eager, in one run: milliseconds of a call, and of a call and its gradients.

    python benchmarks/flex_attention.py [--device cuda] [--batch 4] [--heads 16] [--length 2048] [--width 64]
        [--dtype bfloat16] [--without-eager] [--dynamic]

The masks and scores are those of torch's own documentation. "decoding" is one query of 8 times as many keys, in half as
many heads of these. --dynamic: both compilers leave sizes open. Minima of three rounds; on the CPU of processor time of
one thread, and without gradients, which torch has on GPUs.
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

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def causal(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def sliding_window(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= key) & (query - key < 256)


def same_document(documents: Tensor) -> Mask:
    return lambda b, h, query, key: (query >= key) & (documents[query] == documents[key])


def alibi(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return score + (key - query) * torch.exp2(-(h + 1.0))


def softcap(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return 20 * torch.tanh(score / 20)


def milliseconds(call: Callable[[], object], device: str, times: int) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.perf_counter if device == "cuda" else time.process_time
    call()
    best = float("inf")
    for _ in range(3):
        wait()
        start = clock()
        for _ in range(times):
            call()
        wait()
        best = min(best, (clock() - start) / times)
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="bfloat16 on a GPU, float32 on the CPU")
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--heads", type=int, default=None)
    parser.add_argument("--length", type=int, default=None)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--without-eager", action="store_true")
    parser.add_argument("--dynamic", action="store_true", help="programs of open sizes")
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

    def drawn(heads: int, length: int) -> Tensor:
        shape = (batch, heads, length, options.width)
        return torch.randn(shape, device=options.device, dtype=dtype, requires_grad=on_gpu)

    documents = torch.arange(length, device=options.device) // 300
    masks = {"causal": causal, "window of 256": sliding_window, "documents of 300": same_document(documents)}
    blocks = {name: create_block_mask(one, None, None, length, length, device=options.device)
              for name, one in masks.items()}  # fmt: skip
    whole = [drawn(heads, length) for _ in range(3)]
    decoding = [drawn(heads, 1), drawn(heads // 2, 8 * length), drawn(heads // 2, 8 * length)]
    programs: list[tuple[str, object, object, list[Tensor]]] = [
        (name, None, one, whole) for name, one in blocks.items()
    ]
    programs += [("ALiBi, causal", alibi, blocks["causal"], whole), ("ALiBi", alibi, None, whole)]
    programs += [("softcap, causal", softcap, blocks["causal"], whole), ("softcap", softcap, None, whole)]
    programs += [("decoding", None, None, decoding), ("decoding, softcap", softcap, None, decoding)]
    for name, score, mask, tensors in programs:

        def call(*given: Tensor, score: object = score, mask: object = mask) -> Tensor:
            return flex_attention(*given, score, mask, enable_gqa=True)  # type: ignore[arg-type]

        torch._dynamo.reset()
        dynamic = True if options.dynamic else None
        engines = {
            "stagefold": stagefold.compile(call, dynamic=dynamic), "torch.compile": torch.compile(call, dynamic=dynamic)
        }  # fmt: skip
        if not options.without_eager:
            engines["eager"] = call
        for trained in (False, True) if on_gpu and tensors is whole else (False,):
            row = {engine: taken(run, tensors, trained, options.device) for engine, run in engines.items()}
            text = "  ".join(f"{engine} {time:.3f}" for engine, time in row.items())
            what = f"{name}{', and gradients' if trained else ''}"
            print(
                f"{what:32} {text}  {row['torch.compile'] / row['stagefold']:.2f} of torch.compile's speed", flush=True
            )


def taken(run: Callable[..., Tensor], tensors: list[Tensor], trained: bool, device: str) -> float:
    """Milliseconds of a call."""
    times = 50 if device == "cuda" else 10
    if trained:
        grad = torch.randn_like(run(*tensors))
        return milliseconds(lambda: torch.autograd.grad(run(*tensors), tensors, grad), device, times)
    with torch.no_grad():
        return milliseconds(lambda: run(*tensors), device, times)


if __name__ == "__main__":
    main()
