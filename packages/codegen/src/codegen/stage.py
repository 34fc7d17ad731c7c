"""The codegen stage: `Loop` in, `Program` out. Pure data; nothing is compiled here (`codegen.load` does that)."""

from __future__ import annotations

import dataclasses
from math import gcd
from typing import Any, Literal

from msgspec.structs import replace

from codegen.cpp.emit import emit_unit
from codegen.cpp.target import Isa, Sanitizer, Target, check_target
from codegen.errors import UnknownTarget, UnsupportedDevice
from codegen.in_place import without_copies_in_place
from codegen.triton.tuning import VECTOR_BYTES
from codegen.wrapper import write_unit
from stagewire.expr import symbols_of
from stagewire.loop import Loop, LoopGraph
from stagewire.program import Launch, Program, Unit
from stagewire.sizes import NO_HINTS, Hints, hints_of
from stagewire.stage import expect


@dataclasses.dataclass(frozen=True)
class Options:
    """`target`: which emitter; "auto" takes Triton for a program that touches a CUDA device.

    `parallel_threshold`: rough count of scalar operations below which a kernel stays on one thread (starting a parallel
    region costs some microseconds, more with more threads: the threshold grows by an eighth for each).

    `autotune`: what stands for a product of matrices and the kernel behind it. "off": a call of ATen and the kernel;
    "time": also templates in Triton, so that whoever loads the unit on a GPU takes what is quicker there; "force": the
    first template, wherever it runs.

    `depthwise`: depthwise convolutions on a GPU are kernels of ours, where these are quicker than ATen's.

    `isa`: the instruction set that C++ is compiled for. "native": all that the machine has which loads the program
    (at most what its environment variable CODEGEN_ISA says); else a level of x86-64, and the program is refused by
    machines that lack it.

    `sanitize`: checks that the compiler builds into C++ kernels, for tests: the first fault ends the process with a
    report. "address" needs its runtime loaded first (`tools/sanitize_kernels.py`).
    """

    target: Literal["auto", "cpp", "triton"] = "auto"
    parallel_threshold: int = 65536
    autotune: Literal["off", "time", "force"] = "off"
    depthwise: bool = True
    isa: Isa = "native"
    sanitize: tuple[Sanitizer, ...] = ()


class Codegen:
    """Emits one source and one list of wrapper instructions for each direction."""

    name = "codegen"
    version = "1"
    consumes = "loop"
    produces = "program"
    Options = Options

    def run(self, document: Loop, options: Any = None) -> Program:
        """Emit both directions."""
        expect(document, "loop", self.name)
        options = options or Options()
        if options.target == "auto":
            options = dataclasses.replace(options, target=_target_for(document.forward, document.backward))
        hints = hints_of(document.binding.symbols)
        symbols = document.binding.symbols
        multiples = tuple((s.name, gcd(s.hint, VECTOR_BYTES)) for s in symbols if s.hint and s.hint % 2 == 0)
        graphs = (document.forward, document.backward)
        forward, backward = (None if one is None else emit(one, options, hints, multiples) for one in graphs)
        assert forward is not None
        return Program(binding=document.binding, forward=forward, backward=backward)


def emit(
    graph: LoopGraph, options: Options, hints: Hints = NO_HINTS, multiples: tuple[tuple[str, int], ...] = ()
) -> Unit:
    """One direction. `hints`: values of symbols for which a GPU's kernels are cut; others are as right. `multiples`:
    symbols that were multiples of a power of two."""
    for buffer in graph.buffers:
        if not buffer.type.device.startswith(_DEVICES):
            raise UnsupportedDevice(f"{buffer.name} is a tensor on the device {buffer.type.device}")
    check_target(Target(options.isa, options.sanitize))
    graph = without_copies_in_place(graph)
    target = _target_for(graph) if options.target == "auto" else options.target
    if target == "triton":
        from codegen.triton.unit import emit_triton_unit  # what runs on a CPU does not need it

        unit = emit_triton_unit(graph, options, hints)
        taken = [size for one in unit.instructions if isinstance(one, Launch) for size in one.sizes]
        named = {name for size in taken for name in symbols_of(size)}
        divisible = tuple(one for one in multiples if one[0] in named)
        return replace(unit, multiples=divisible, isa=options.isa, sanitize=options.sanitize)
    if target != "cpp":
        raise UnknownTarget(f"no emitter for the target {target!r}")
    source, kernels, launches = emit_unit(graph, threshold=options.parallel_threshold)
    compiled = {"isa": options.isa, "sanitize": options.sanitize}
    return write_unit(graph, launches, target="cpp", source=source, kernels=kernels, **compiled)


_DEVICES = ("cpu", "cuda")


def _target_for(*graphs: LoopGraph | None) -> Literal["cpp", "triton"]:
    buffers = [buffer for graph in graphs if graph is not None for buffer in graph.buffers]
    return "triton" if any(buffer.type.device.startswith("cuda") for buffer in buffers) else "cpp"
