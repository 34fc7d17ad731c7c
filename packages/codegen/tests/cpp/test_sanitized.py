"""Kernels compiled with the compiler's sanitizers: an access outside of a buffer ends the process with a report."""

import os
import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys
from codegen.cpp.emit import emit_unit
from codegen.cpp.machine_code import compile_sources
from codegen.cpp.target import Target
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Index, Kernel, Load, LoopGraph, Section, Store, Term
from stagewire.types import contiguous

reads, writes, size, directory = (*map(int, sys.argv[1:4]), sys.argv[4])
i = Term(1, AxisAtom("i"))
body = (Load("v", "x", Index(reads, (i,)), "float32"), Store("y", Index(writes, (i,)), Ref("v")))
buffers = (Buffer("x", contiguous("float32", (size,)), "input"), Buffer("y", contiguous("float32", (size,)), "kernel"))
kernels = (Kernel("k", (Axis("i", size),), (Section((), body),)),)
graph = LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("y"),), steps=kernels)
source, _, launches, _ = emit_unit(graph, threshold=1 << 60)
(path,) = compile_sources([source], directory, Target(sanitize=("address", "undefined")))
memory = {name: (ctypes.c_float * size)() for name in "xy"}
memory["x"][:] = range(size)
addresses = (ctypes.c_void_p * 2)(*(ctypes.addressof(memory[name]) for name in launches["k"].buffers))
getattr(ctypes.CDLL(str(path)), launches["k"].kernel)(addresses, None, ctypes.c_int64(1), (ctypes.c_int64 * 1)())
assert memory["y"][:] == memory["x"][:]
"""
"""A kernel that copies x to y, perhaps beside the place. Nothing of torch is needed."""


def runtimes() -> str:
    """The sanitizers' libraries, "" without a compiler that has them."""
    if shutil.which("g++") is None:
        return ""
    found = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return " ".join(found) if all(map(os.path.isabs, found)) else ""


@pytest.mark.skipif(not runtimes(), reason="g++ has no libasan.so")
@pytest.mark.parametrize(("reads", "writes"), [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1)])
@pytest.mark.parametrize("size", [7, 33])
def test_an_access_outside_of_a_buffer_is_reported(reads, writes, size, tmp_path):
    # PYTHONMALLOC: the buffers' memory is Python's
    limits = {"LD_PRELOAD": runtimes(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    command = [sys.executable, "-c", SCRIPT, *map(str, (reads, writes, size, tmp_path))]
    done = subprocess.run(command, env=os.environ | limits, capture_output=True, text=True, timeout=300)
    if reads == writes == 0:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert "heap-buffer-overflow" in done.stderr
        assert f"{'READ' if reads else 'WRITE'} of size" in done.stderr
