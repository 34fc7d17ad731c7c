"""Compile kernels of one launch for sm_90, in a process without the interpreter.

Prints one line for each kernel: its name, how many buffers it takes, bytes of shared memory, the cubin's first four
bytes in hex.
"""

from msgspec.structs import replace
from test_horizontal_fusion import step_of

from codegen import Options
from codegen.runtime.required_cubins import required_cubins
from codegen.stage import emit
from codegen.testing.cubins import compile_cubin
from codegen.triton.compiling import module_of

for sizes in ((64, 2048, 8, 1024), (3, 1000, 1, 4097, 17), tuple(range(8, 600, 8))):
    graph = step_of(sizes)
    buffers = tuple(replace(one, type=replace(one.type, device="cuda:0")) for one in graph.buffers)
    unit = emit(replace(graph, buffers=buffers), Options(target="triton"))
    module = module_of(unit.source)
    for one in required_cubins(unit):
        cubin = compile_cubin(module, one)
        print(one.info.name, len(one.dtypes), cubin.shared, cubin.code[:4].hex())
