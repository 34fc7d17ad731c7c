"""What it costs to hand a small kernel to the threads: a region of OpenMP for each, or one region for all of them.

    python benchmarks/parallel_regions.py [--threads 1 2 4 8 16] [--kernels 20]

A program of small kernels, each of which reads what the one before it wrote (`x = x * 1.5 + y`), compiled with the
flags of a unit and run on torch's OpenMP runtime. Microseconds a kernel: on one thread; with a region for each kernel;
in one region with a barrier behind each; in one region without barriers (kernels that are independent of each other).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

from codegen.cpp.machine_code import compile_sources

SOURCE = """
typedef long long i64;
#define WALK for (i64 i = 0; i < n; i++) x[i] = x[i] * 1.5f + y[i];
extern "C" void alone(float *x, const float *y, i64 n, i64 kernels, i64 threads) {
  for (i64 k = 0; k < kernels; k++) { WALK }
}
extern "C" void region_each(float *x, const float *y, i64 n, i64 kernels, i64 threads) {
  for (i64 k = 0; k < kernels; k++) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    WALK
  }
}
extern "C" void one_region(float *x, const float *y, i64 n, i64 kernels, i64 threads) {
  #pragma omp parallel num_threads(threads)
  for (i64 k = 0; k < kernels; k++) {
    #pragma omp for schedule(static)
    WALK
  }
}
extern "C" void no_barriers(float *x, const float *y, i64 n, i64 kernels, i64 threads) {
  #pragma omp parallel num_threads(threads)
  for (i64 k = 0; k < kernels; k++) {
    #pragma omp for schedule(static) nowait
    WALK
  }
}
"""
WAYS = ("alone", "region_each", "one_region", "no_barriers")
SIZES = (0, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18)


def microseconds(run: Callable[[], None], kernels: int) -> float:
    """The median over samples of some milliseconds, for one kernel."""
    samples = []
    for _ in range(40):
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < 2e-3:
            run()
            calls += 1
        samples.append((time.perf_counter() - start) / calls)
    return statistics.median(samples) / kernels * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--kernels", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        library = ctypes.CDLL(str(compile_sources([SOURCE], directory)[0]))
    print(f"{'threads':>7} {'elements':>9} " + " ".join(f"{way:>12}" for way in WAYS))
    for threads in (count for count in options.threads if count <= (os.cpu_count() or 1)):
        for size in SIZES:
            x, y = torch.zeros(max(size, 1)), torch.ones(max(size, 1))
            cells = []
            for way in WAYS:
                call = getattr(library, way)
                given = (ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), *map(
                    ctypes.c_longlong, (size, options.kernels, threads)))  # fmt: skip
                cells.append(f"{microseconds(lambda call=call, given=given: call(*given), options.kernels):12.3f}")
            print(f"{threads:7d} {size:9d} " + " ".join(cells), flush=True)


if __name__ == "__main__":
    main()
