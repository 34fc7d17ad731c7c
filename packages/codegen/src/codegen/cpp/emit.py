"""One translation unit for one direction: prelude, then each distinct kernel once.

Kernels that are equal up to the names of buffers, axes and values become one function: the layers of a deep network
share their code, and the compiler reads it once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files

from codegen.cpp.function import KernelText, write_function
from codegen.cpp.parallel_regions import Stages, group_kernels
from codegen.errors import UnsupportedKernel
from codegen.memory import memory_roots
from stagewire.loop import Kernel, LoopGraph, Scan
from stagewire.program import KernelInfo, Launch
from stagewire.statements import statements_of
from stagewire.types import TensorType

_NAME = re.compile(r"\bsf_\w+")


@lru_cache(maxsize=1)
def _blocks() -> tuple[str, dict[str, str]]:
    """The head (types, macros), and each definition by the name that it defines; blank lines separate blocks."""
    text = files("codegen.cpp").joinpath("prelude.h").read_text()
    head: list[str] = []
    blocks: dict[str, str] = {}
    for block in text.split("\n\n"):
        block = block.strip("\n")
        names = _NAME.findall(block)
        if names:
            blocks[names[0]] = block
        elif not block.startswith("//"):
            head.append(block)
    return "\n\n".join(head), blocks


def prelude(body: str) -> str:
    """The head and the definitions that `body` needs, directly or not, in the order of the file."""
    head, blocks = _blocks()
    wanted: set[str] = set()
    pending = [name for name in set(_NAME.findall(body)) if name in blocks]
    while pending:
        name = pending.pop()
        if name in wanted:
            continue
        wanted.add(name)
        pending.extend(used for used in set(_NAME.findall(blocks[name])) if used in blocks and used not in wanted)
    return "\n\n".join([head, *(text for name, text in blocks.items() if name in wanted)])


def emit_unit(
    graph: LoopGraph, *, threshold: int, kernels: Iterable[Kernel] | None = None, prefix: str = "k"
) -> tuple[str, tuple[KernelInfo, ...], dict[str, Launch | None]]:
    """Source, entry points, and the launch that stands for each kernel of `graph` (by the kernel's name); None for one
    that the launch of an earlier kernel runs too.

    kernels: those to write, one by one (default: all, in groups). prefix: the functions' names begin with it.
    """
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    roots = memory_roots(graph)
    functions: dict[str, str] = {}
    infos: list[KernelInfo] = []
    launches: dict[str, Launch | None] = {}
    groups = group_kernels(graph, roots, threshold) if kernels is None else ([[kernel]] for kernel in kernels)
    for stages in groups:
        text = _write(stages, types, roots, threshold)
        if text.body not in functions:
            name = f"{prefix}{len(functions)}"
            functions[text.body] = name
            infos.append(KernelInfo(name, text.parameters))
        first, *rest = (kernel.name for stage in stages for kernel in stage)
        launches |= {first: Launch(functions[text.body], text.parameters, text.sizes), **dict.fromkeys(rest)}
    body = "\n\n".join(f'extern "C" void {name}{text}' for text, name in functions.items())
    source = prelude(body) + "\n\n" + body + "\n" if functions else ""
    return source, tuple(infos), launches


def _refuse_scans(kernel: Kernel) -> None:
    for statement in statements_of(kernel):
        if isinstance(statement, Scan):
            raise UnsupportedKernel(f"C++ kernels have no form of the scan %{statement.result} in {kernel.name}")


def _write(stages: Stages, types: Mapping[str, TensorType], roots: Mapping[str, str], threshold: int) -> KernelText:
    for kernel in (kernel for stage in stages for kernel in stage):
        _refuse_scans(kernel)
    text = write_function(stages, types, threshold=threshold)
    memory = [roots[name] for name in text.parameters]
    if len(set(memory)) == len(memory):
        return text
    return write_function(stages, types, threshold=threshold, aliased=True)
