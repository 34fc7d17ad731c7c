"""When two kernels reduce long rows faster than one, on one NVIDIA GPU: microseconds, as CUDA graphs.

    python benchmarks/split_rows.py [--rows 1 4 16 64 256 512] [--lengths 2048 ... 131072]

The sum of rows (float32) and the RMS norm of rows (bfloat16), with rows cut in parts and whole. loopir's
`SplitReductions.long_row` and `parts` are chosen by these figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from triton.testing import do_bench_cudagraph

import stagefold
from loopir.passes.split_reductions import SplitReductions
from loopir.pipeline import PASSES

ALWAYS = tuple(SplitReductions(long_row=0, parts=2) if isinstance(p, SplitReductions) else p for p in PASSES)
NEVER = tuple(p for p in PASSES if not isinstance(p, SplitReductions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256, 512])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1 << n for n in range(11, 18)])
    given = parser.parse_args()
    cases: tuple[tuple[str, Callable[..., Any], torch.dtype], ...] = (
        ("sum", lambda x: x.sum(-1), torch.float32),
        ("RMS norm", lambda x: F.rms_norm(x, x.shape[-1:]), torch.bfloat16),
    )
    for name, call, dtype in cases:
        for length in given.lengths:
            found = []
            for rows in given.rows:
                x = torch.randn(rows, length, device="cuda").to(dtype)
                split, whole = (microseconds(call, x, passes) for passes in (ALWAYS, NEVER))
                found.append(f"{rows}: {split:.2f} / {whole:.2f}")
            print(f"{name}, length {length}, rows: in parts / whole  {'   '.join(found)}", flush=True)


@torch.no_grad()
def microseconds(call: Callable[..., Any], x: torch.Tensor, passes: tuple[Any, ...]) -> float:
    compiled = stagefold.compile(lambda x: call(x), fullgraph=True, dynamic=False, options={"loopir.passes": passes})
    compiled(x)
    return float(do_bench_cudagraph(lambda: compiled(x), rep=6)) * 1e3


if __name__ == "__main__":
    main()
