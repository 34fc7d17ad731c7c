"""Compile every kernel of the given Loop documents for sm_90, in a process without Triton's interpreter.

Prints one line for each kernel: its name, the bytes of its cubin, and the cubin's first four bytes in hex.
"""

import sys
import tempfile
from pathlib import Path

import stagewire
from codegen import Options
from codegen.runtime.triton_loader import import_source
from codegen.stage import emit
from codegen.triton.cubin import compile_cubin

for path in sys.argv[1:]:
    graph = stagewire.load(path, expect="loop").forward
    unit = emit(graph, Options(target="triton"))
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    module = import_source(unit.source, Path(tempfile.mkdtemp()))
    for info in unit.kernels:
        dtypes = tuple(types[name].dtype for name in info.parameters)
        cubin = compile_cubin(module, info, dtypes, capability=90).code
        print(info.name, len(cubin), cubin[:4].hex())
