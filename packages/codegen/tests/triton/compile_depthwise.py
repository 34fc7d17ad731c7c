"""Compile depthwise convolutions and their gradients for sm_90, in a process without the interpreter.

Prints one line for each kernel: its name, its tile, bytes of shared memory, the cubin's first four bytes in hex.
"""

import torch
from test_depthwise import OPTIONS, Case

from codegen.runtime.required_cubins import required_cubins
from codegen.stage import emit
from codegen.testing.cubins import compile_cubin
from codegen.triton.compiling import module_of

CASES = (
    Case(torch.bfloat16, (28, 28), (5, 5), 1, 2, 1, channels=72, batch=8),
    Case(torch.bfloat16, (28, 28), (3, 3), 2, 1, 1, is_last=True, channels=72, batch=9, bias=True),
    Case(torch.float16, (7, 7), (5, 5), 1, 2, 1, is_last=True, channels=32),
    Case(torch.float16, (50,), (15,), 1, 7, 1, channels=16),
)

for case in CASES:
    for graph in (case.forward(), case.backward()):
        unit = emit(graph, OPTIONS)
        module = module_of(unit.source)
        for one in required_cubins(unit):
            cubin = compile_cubin(module, one)
            tile = "x".join(str(value) for _, value in one.info.constants)
            print(one.info.name, tile, cubin.shared, cubin.code[:4].hex())
