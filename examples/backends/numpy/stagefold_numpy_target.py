"""A target whose kernels run in NumPy: `stagefold.compile(f, options={"codegen.target": "numpy"})`.

The source of a unit is its kernels and buffers as JSON; loopir's interpreter runs a kernel on the memory of tensors.
"""

from functools import partial

import msgspec
import torch

from codegen.load import run_functions
from codegen.targets import Target
from codegen.wrapper import launch_each, write_unit
from loopir.interpret import Memory, run_kernel
from stagewire.loop import Buffer, Kernel


class Source(msgspec.Struct):
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]


class NumpyTarget(Target):
    name, interface, suffix, forms = "numpy", 1, "json", "stagefold.numpy"
    lacks = frozenset(("float8_e4m3fn", "float8_e5m2", "erfinv"))

    def emit(self, graph, options, hints=None, multiples=()):
        infos, launches = launch_each(graph)
        kernels = tuple(step for step in graph.steps if isinstance(step, Kernel))
        buffers = tuple(Buffer(one.name, one.type, "kernel") for one in graph.buffers)
        source = msgspec.json.encode(Source(kernels, buffers)).decode()
        return write_unit(graph, launches, target=self.name, source=source, kernels=infos)

    def load(self, units, directory, executor):
        return [run_functions(unit, functions(unit)) for unit in units]


def functions(unit):
    """The kernels of a unit as functions of tensors and sizes."""
    source = msgspec.json.decode(unit.source, type=Source)
    launches = {one.kernel: one for one in unit.instructions if hasattr(one, "kernel")}
    infos = {info.name: info for info in unit.kernels}
    return {k.name: partial(run, k, source.buffers, infos[k.name].parameters, launches[k.name].sizes)
            for k in source.kernels}  # fmt: skip


def run(kernel, buffers, names, symbols, tensors, sizes):
    """Run a kernel on the memory of tensors."""
    memory = Memory(buffers, dict(zip(map(str, symbols), sizes, strict=True)))
    memory.bytes |= {name: memory_of(tensor) for name, tensor in zip(names, tensors, strict=True)}
    run_kernel(kernel, memory)


def memory_of(tensor):
    """The bytes from the first element of a tensor to its last."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    span = last + 1 if tensor.numel() else 0
    return torch.as_strided(tensor.detach(), (span,), (1,)).view(torch.uint8).numpy()


TARGET = NumpyTarget()
