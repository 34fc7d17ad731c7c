"""A target whose kernels run in NumPy: `stagefold.compile(f, options={"codegen.target": "numpy"})`.

The source of a unit is its graph as JSON; loopir's interpreter runs a kernel on the memory of tensors.
"""

from functools import partial

import msgspec
import torch

from codegen.load import run_functions
from codegen.targets import Target
from codegen.wrapper import launch_each, write_unit
from loopir.interpret import Memory, run_kernel
from stagewire.loop import Buffer, LoopGraph
from stagewire.program import Launch


class NumpyTarget(Target):
    name, interface, suffix, forms = "numpy", 1, "json", "stagefold.numpy"
    lacks = frozenset(("float8_e4m3fn", "float8_e5m2", "erfinv"))

    def emit(self, graph, options, hints=None, multiples=()):
        infos, launches = launch_each(graph)
        return write_unit(graph, launches, target=self.name, source=msgspec.json.encode(graph).decode(), kernels=infos)

    def load(self, units, directory, executor):
        return [run_functions(unit, dict(functions(unit))) for unit in units]


def functions(unit):
    """The kernels of a unit as functions of tensors and sizes."""
    graph = msgspec.json.decode(unit.source, type=LoopGraph)
    kernels = {getattr(step, "name", None): step for step in graph.steps}
    buffers = tuple(Buffer(one.name, one.type, "kernel") for one in graph.buffers)
    names = {info.name: info.parameters for info in unit.kernels}
    for one in unit.instructions:
        if isinstance(one, Launch):
            yield one.kernel, partial(run, kernels[one.kernel], buffers, names[one.kernel], one.sizes)


def run(kernel, buffers, names, symbols, tensors, sizes):
    """Run a kernel on the memory of tensors, as bytes from the first element of each to its last."""
    memory = Memory(buffers, dict(zip(map(str, symbols), sizes, strict=True)))
    for name, tensor in zip(names, tensors, strict=True):
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        flat = tensor.detach().as_strided((last + 1 if tensor.numel() else 0,), (1,))
        memory.bytes[name] = flat.view(torch.uint8).numpy()
    run_kernel(kernel, memory)


TARGET = NumpyTarget()
