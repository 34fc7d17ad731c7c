"""Products of matrices on a CPU: ATen's, and oneDNN's with the weight as it is and packed (frozen programs' products).

    python benchmarks/packed_products.py [--threads 1]

Microseconds of processor time (more threads: wall-clock time) of `input @ weight.t() + bias`, medians of turns.
`codegen.runtime.cpu_products` says what is packed, `stagefold.freezing.fold` where.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from beside.run import processor
from beside.turns import in_turns

from absint.cpu_kernels import has_matrix_tiles
from codegen.runtime.cpu_products import PRODUCTS, PackedProduct, can_pack
from codegen.torch_capabilities import TORCH

SHAPES = (
    (1, 512, 512), (8, 512, 512), (64, 128, 128), (64, 128, 512), (64, 512, 128), (512, 128, 128), (512, 128, 512),
    (512, 512, 128), (1024, 128, 2048), (128, 768, 768), (128, 768, 3072), (512, 768, 768), (512, 768, 3072),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.threads == 1 else time.perf_counter
    print(f"{processor()}, {torch.__version__}, tiles of matrices: {has_matrix_tiles()}")
    print("| rows x depth x columns | dtype | ATen us | oneDNN | packed |\n|---|---|---:|---:|---:|")
    for dtype in (torch.float32, torch.bfloat16):
        if not can_pack(dtype, PRODUCTS):
            print(f"| {dtype}: oneDNN has no kernels for it here |")
            continue
        for rows, depth, columns in SHAPES:
            x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((rows, depth), (columns, depth), (columns,)))
            calls = (
                partial(torch.nn.functional.linear, x, weight, bias),
                partial(TORCH.multiply_packed, x, weight, bias, "none", [], ""),
                partial(PackedProduct(), x, weight, bias, True),
            )
            with torch.no_grad():
                seconds, speeds = in_turns(list(calls), clock=clock)
            row = " | ".join(f"{speed:.2f}" for speed in speeds)
            print(f"| {rows} x {depth} x {columns} | {str(dtype)[6:]} | {seconds * 1e6:.0f} | {row} |", flush=True)


if __name__ == "__main__":
    main()
