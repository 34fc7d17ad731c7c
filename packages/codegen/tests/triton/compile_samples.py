"""Compile every kernel of the given Loop documents for sm_90, in a process without Triton's interpreter.

Prints one line for each kernel: its name, the bytes of its cubin, and the cubin's first four bytes in hex.
"""

import sys

import stagewire
from codegen import Options
from codegen.runtime.required_cubins import required_cubins
from codegen.stage import emit
from codegen.testing.cubins import compile_cubin
from codegen.triton.compiling import module_of

for path in sys.argv[1:]:
    graph = stagewire.load(path, expect="loop").forward
    unit = emit(graph, Options(target="triton"))
    module = module_of(unit.source)
    for one in required_cubins(unit):
        cubin = compile_cubin(module, one).code
        print(one.info.name, len(cubin), cubin[:4].hex())
