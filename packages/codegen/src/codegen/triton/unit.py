"""One direction of a `Loop` document as a Triton module and its launches: pure data, nothing is imported."""

from __future__ import annotations

from typing import Any

from codegen.cpp.emit import emit_unit
from codegen.errors import UnsupportedKernel
from codegen.triton.emit import emit_kernel
from codegen.triton.plan import NO_HINTS, Hints, Plan, plan
from codegen.triton.prelude import PRELUDE
from codegen.wrapper import input_types, write_instructions, written_inputs
from stagewire.loop import Kernel, Load, LoopGraph, Store
from stagewire.program import KernelInfo, Launch, Unit


def emit_triton_unit(graph: LoopGraph, options: Any, hints: Hints = NO_HINTS) -> Unit:
    """One function for each distinct kernel (kernels that differ only in their buffers share it).

    Kernels on memory of the CPU, in a program for a CUDA device, are written in C++.
    """
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    is_mixed = any(type_.device != "cpu" for type_ in types.values())  # else: for Triton's interpreter
    functions: dict[str, KernelInfo] = {}
    launches: dict[str, Launch] = {}
    texts: list[str] = []
    on_host: list[Kernel] = []
    for step in graph.steps:
        if not isinstance(step, Kernel):
            continue
        parameters = buffers_of(step)
        devices = sorted({types[name].device for name in parameters})
        if len(devices) > 1:
            raise UnsupportedKernel(f"kernel {step.name} works on several devices: {', '.join(devices)}")
        if devices == ["cpu"] and is_mixed:
            on_host.append(step)
            continue
        tiles = plan(step, hints)
        body, sizes = emit_kernel(tiles, parameters, types)
        described = [types[name].dtype for name in parameters], sizes, tiles.grid if sizes else ()
        key = body.replace(f"def {step.name}(", "def (", 1) + repr(described)
        if key not in functions:
            functions[key] = kernel_info(tiles, parameters, is_symbolic=bool(sizes))
            texts.append(body)
        launches[step.name] = Launch(functions[key].name, parameters, sizes)
    host_source, host_kernels, host_launches = emit_unit(
        graph, threshold=options.parallel_threshold, kernels=on_host, prefix="host"
    )
    return Unit(
        target="triton",
        source="\n\n".join([PRELUDE, *texts]),
        kernels=tuple(functions.values()),
        inputs=graph.inputs,
        input_types=input_types(graph),
        outputs=graph.outputs,
        instructions=write_instructions(graph, launches | host_launches),
        host_source=host_source,
        host_kernels=host_kernels,
        written=written_inputs(graph),
    )


def buffers_of(kernel: Kernel) -> tuple[str, ...]:
    """The buffers that a kernel reads or writes, in order of first use."""
    statements = [statement for section in kernel.sections for statement in section.statements]
    return tuple(dict.fromkeys(s.buffer for s in statements if isinstance(s, Load | Store)))


def kernel_info(tiles: Plan, parameters: tuple[str, ...], is_symbolic: bool = False) -> KernelInfo:
    """Grid, block sizes and warps of a kernel."""
    blocks = (*((("WIDE", 0),) if is_symbolic else ()), ("XBLOCK", tiles.outer), ("RBLOCK", tiles.inner))
    return KernelInfo(tiles.kernel.name, parameters, grid=tiles.grid, constants=blocks, num_warps=tiles.warps)
