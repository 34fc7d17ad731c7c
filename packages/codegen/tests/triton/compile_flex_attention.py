"""Compile FlexAttention and its gradients for sm_90, in a process without the interpreter.

Prints one line for each kernel: its name, its tile, bytes of shared memory, the cubin's first four bytes in hex.
"""

from test_flex_attention import CAUSAL, TWICE, TWICE_BACK, attention, function, unit_of

from codegen.runtime.required_cubins import required_cubins
from codegen.testing.cubins import compile_cubin
from codegen.triton.compiling import module_of

SIZES = (1, 2, 300, 256)
FUNCTIONS = [function(TWICE, sizes=SIZES), function(CAUSAL, "b8", sizes=SIZES)]
GRADIENT = function(TWICE_BACK, inputs=2, sizes=SIZES)

for dtype, width, backward in (
    ("float32", 256, False), ("float32", 128, True), ("bfloat16", 256, True), ("bfloat16", 128, True),
):  # fmt: skip
    functions = [*FUNCTIONS, GRADIENT] if backward else FUNCTIONS
    unit = unit_of(attention(functions, backward=backward, dtype=dtype, width=width, sizes=SIZES))
    module = module_of(unit.source)
    for one in required_cubins(unit):
        cubin = compile_cubin(module, one)
        tile = "x".join(str(value) for _, value in one.info.constants)
        print(one.info.name, tile, cubin.shared, cubin.code[:4].hex())
