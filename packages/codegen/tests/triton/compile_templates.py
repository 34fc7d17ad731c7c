"""Compile templates for sm_90, each with some of the tiles that would be timed, in a process without the interpreter.

Prints one line for each kernel: its name, its tile, bytes of shared memory, the cubin's first four bytes in hex.
"""

from codegen import Options
from codegen.choices import chosen
from codegen.runtime.required_cubins import required_cubins
from codegen.stage import emit
from codegen.testing.cubins import compile_cubin
from codegen.testing.product_texts import batched_scale, linear_relu, made_operands
from codegen.triton.compiling import module_of

GRAPHS = (
    linear_relu(512, 768, 768, "bfloat16"),
    linear_relu(5, 1000, 300, "float16"),
    batched_scale(3, 100, 70, 65, "float32"),
    made_operands(512, 768, 768, "bfloat16"),
    made_operands(512, 770, 1000, "bfloat16", kept=True),
)

for graph in GRAPHS:
    unit = emit(graph, Options(target="triton", autotune="time"))
    module = module_of(unit.source)
    count = len(unit.choices[0].alternatives)
    for pick in (0, count - 1):
        for one in required_cubins(chosen(unit, {0: pick})):
            cubin = compile_cubin(module, one)
            tile = "x".join(str(value) for _, value in one.info.constants[:3])
            print(one.info.name, tile, cubin.shared, cubin.code[:4].hex())
