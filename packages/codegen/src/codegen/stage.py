"""The codegen stage: `Loop` in, `Program` out. Pure data; nothing is compiled here (`codegen.load` does that)."""

from __future__ import annotations

import dataclasses
from math import gcd
from typing import Any, Literal

from codegen import targets
from codegen.cpp.target import Isa, Sanitizer, Target, check_target
from codegen.errors import BadTarget
from codegen.index_splitting import without_copies_in_place
from codegen.triton.tuning import VECTOR_BYTES
from stagewire.loop import Loop, LoopGraph
from stagewire.program import Program, Unit
from stagewire.sizes import NO_HINTS, Hints, hints_of
from stagewire.stage import expect


@dataclasses.dataclass(frozen=True)
class Options:
    """`target`: which one (`codegen.targets`); "auto" takes the one that is registered for the program's device: Triton
    where it touches a CUDA device, else C++.

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

    target: str = "auto"
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

    def uses(self, options: Any = None) -> tuple[targets.Target, ...]:
        """The target, whose code is then a part of the stage; none where the document decides ("auto")."""
        name = (options or Options()).target
        return () if name == "auto" else (targets.find(name),)

    def run(self, document: Loop, options: Any = None) -> Program:
        """Emit both directions."""
        expect(document, "loop", self.name)
        options = options or Options()
        target = targets.choose(options.target, document.forward, document.backward)
        options = dataclasses.replace(options, target=target.name)
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
    target = targets.choose(options.target, graph)
    targets.check(target, graph)
    check_target(Target(options.isa, options.sanitize))
    unit = target.emit(without_copies_in_place(graph), options, hints, multiples)
    if not isinstance(unit, Unit):
        raise BadTarget(f"emit() of the target {target.name!r} returned a {type(unit).__name__}, not a Unit")
    return unit
