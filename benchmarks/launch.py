"""What the processor takes to start one kernel, and one call of cuBLAS, on an NVIDIA GPU.

    python benchmarks/launch.py [--few 20] [--many 60] [--rounds 200]

Two programs of n steps that no compiler makes fewer: softmax along rows and columns in turn (n kernels), and a chain of
products (n calls); all are tiny, so that the device is never what is waited for. A call is timed on the processor
alone, after the device has finished what came before. "each" is what n more steps add, divided by n; "call" is what is
left for none. Engines: eager; both compilers; both with CUDA graphs; and as the floor the driver's own function in a
loop in C: `cuLaunchKernel` of an empty kernel, and `cudaGraphLaunch` of a graph of such kernels.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import stagefold
from codegen.cpp.machine_code import compile_sources
from codegen.runtime.library import driver_of

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b) { ret; }
"""

LOOP = """
extern "C" int clock_gettime(int, long *);
typedef unsigned u;
typedef int (*Launch)(void *, u, u, u, u, u, u, u, void *, void **, void **);
extern "C" double launches(Launch launch, void *kernel, void *stream, long count) {
  void *null = nullptr, *arguments[] = {&null, &null};
  long start[2], end[2];
  clock_gettime(1, start);
  for (long k = 0; k < count; k++)
    if (launch(kernel, 1, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr)) return -1;
  clock_gettime(1, end);
  return (double)(end[0] - start[0]) + 1e-9 * (double)(end[1] - start[1]);
}
"""

Program = Callable[..., torch.Tensor]


def kernels(n: int) -> tuple[Program, tuple[torch.Tensor, ...]]:
    """n kernels: each softmax needs all of the one before, in the other direction."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(n):
            x = torch.softmax(x, k % 2)
        return x

    return program, (torch.randn(64, 64, device="cuda"),)


def products(n: int) -> tuple[Program, tuple[torch.Tensor, ...]]:
    """n calls of cuBLAS."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            x = x @ w
        return x

    return program, (torch.randn(16, 16, device="cuda"), torch.eye(16, device="cuda"))


def seconds(call: Callable[[], Any], rounds: int) -> float:
    """Of the processor, for one call: the median."""
    for _ in range(5):
        call()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(found)


ENGINES: dict[str, Callable[[Program], Program]] = {
    "eager": lambda program: program,
    "torch.compile": lambda program: torch.compile(program, fullgraph=True),
    "stagefold": lambda program: stagefold.compile(program, fullgraph=True),
    "torch.compile, reduce-overhead": lambda program: torch.compile(program, fullgraph=True, mode="reduce-overhead"),
    "stagefold, reduce-overhead": lambda program: stagefold.compile(program, fullgraph=True, mode="reduce-overhead"),
}


def launched(call: Callable[[], Any]) -> int:
    """How many kernels a call runs."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    on_device = (event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return sum(not event.key.startswith("Mem") for event in on_device)


def measure(name: str, make: Callable[[int], Any], engine: str, few: int, many: int, rounds: int) -> None:
    """Print one row."""
    took = []
    with torch.no_grad():
        for n in (few, many):
            program, inputs = make(n)
            call = ENGINES[engine](program)
            count = launched(lambda call=call, inputs=inputs: call(*inputs))
            took.append(seconds(lambda call=call, inputs=inputs: call(*inputs), rounds))
            torch._dynamo.reset()
    row(name, engine, (took[1] - took[0]) / (many - few), took[0] - few * (took[1] - took[0]) / (many - few), count)


def row(name: str, engine: str, each: float, call: float, count: int) -> None:
    print(f"{name:9s} {engine:32s} each {each * 1e6:7.3f} us   call {call * 1e6:7.2f} us   {count} kernels", flush=True)


def floor(few: int, many: int, rounds: int) -> None:
    """The driver alone."""
    driver = driver_of(torch.cuda.current_device())
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    driver._call("cuModuleLoadData", ctypes.byref(module), PTX)
    driver._call("cuModuleGetFunction", ctypes.byref(kernel), module, b"nothing")
    with tempfile.TemporaryDirectory() as directory:
        library = ctypes.CDLL(str(compile_sources([LOOP], directory)[0]))
    loop, launch = library.launches, ctypes.cast(driver.library.cuLaunchKernel, ctypes.c_void_p)
    loop.restype, loop.argtypes = ctypes.c_double, [ctypes.c_void_p] * 3 + [ctypes.c_long]

    def on(stream: torch.cuda.Stream, count: int) -> float:
        torch.cuda.synchronize()
        return loop(launch, kernel, ctypes.c_void_p(stream.cuda_stream), count)

    current = torch.cuda.current_stream()
    took = [statistics.median(on(current, n) for _ in range(rounds)) for n in (few, many)]
    each = (took[1] - took[0]) / (many - few)
    row("floor", "cuLaunchKernel in C", each, took[0] - few * each, many)
    took = []
    for n in (few, many):
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=side):
            loop(launch, kernel, ctypes.c_void_p(side.cuda_stream), n)
        took.append(seconds(graph.replay, rounds))
    each = (took[1] - took[0]) / (many - few)
    row("floor", "cudaGraphLaunch", each, took[0] - few * each, many)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--few", type=int, default=20)
    parser.add_argument("--many", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    floor(given.few, given.many, given.rounds)
    for name, make in (("kernels", kernels), ("products", products)):
        for engine in ENGINES:
            measure(name, make, engine, given.few, given.many, given.rounds)


if __name__ == "__main__":
    main()
