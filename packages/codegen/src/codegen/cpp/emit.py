"""One translation unit for one direction: prelude, then each distinct kernel once.

Kernels that are equal up to the names of buffers, axes and values become one function: the layers of a deep network
share their code, and the compiler reads it once. A kernel alone starts the threads for its own loops. Where a function
has several (the pieces of one kernel, or kernels that follow each other), one region of OpenMP holds them all; a
barrier stands only where a kernel needs what others did.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from codegen.choices import Bound
from codegen.cpp.flex_attention import AttentionWriter, is_written
from codegen.cpp.kernel import KernelWriter
from codegen.cpp.operations import FORMS
from codegen.cpp.parallel_regions import Stages, group_kernels
from codegen.cpp.plan import COSTLY, Plan, make_plan, shares, total_work
from codegen.cpp.reductions import order_free
from codegen.cpp.statements import Scope
from codegen.cpp.tuning import TUNED
from codegen.cpp.types import c_type
from codegen.cpp.unroll_and_jam import unroll_and_jam
from codegen.errors import UnsupportedKernel
from codegen.flex_attention import Attention, attentions_of
from codegen.index_splitting import split_pieces
from codegen.memory import memory_roots
from codegen.targets import Executor, Target
from codegen.wrapper import write_unit
from stagewire.expr import Dim, Expr
from stagewire.loop import Kernel, Load, LoopGraph, Scan, Store
from stagewire.loop_ops import cost
from stagewire.program import Allocate, Instruction, KernelInfo, Launch, Unit
from stagewire.sizes import NO_HINTS, Hints
from stagewire.statements import buffers_of, map_buffers, select
from stagewire.types import TensorType

if TYPE_CHECKING:
    from codegen.stage import Options

SIGNATURE = "(void *const *p, const i64 *n, i64 threads, i64 *status)"
"""p: data pointers; n: symbolic sizes; status: bits of errors met, or-ed in."""


WITH_MASKS = """\
#if defined(__AVX512VL__) && !defined(__clang__)
#pragma GCC target("no-avx512vl")
#endif

"""
"""What stands before units with masks: gcc 12 loads 256 bits whole where it knows a mask, also behind the buffer, and
blends them. (Without these instructions other kernels are up to 15 % slower.)"""


class KernelText(NamedTuple):
    """`body` is the function without its name; `parameters` are buffers in the order of `p`, `sizes` those of `n`."""

    body: str
    parameters: tuple[str, ...]
    sizes: tuple[Dim, ...]


def write_function(
    stages: Sequence[Sequence[Kernel]], buffers: Mapping[str, TensorType], *, threshold: int, aliased: bool = False
) -> KernelText:
    """Write kernels; those of one stage may run at the same time, after those of the stages before it.

    threshold: work below which they stay on one thread. aliased: whether parameters may share memory.
    """
    pieces = [
        [part for kernel in stage for piece in split_pieces(order_free(kernel)) for part in unroll_and_jam(piece)]
        for stage in stages
    ]
    scope = Scope(pieces[0][0], buffers)
    if len(pieces) == 1 and len(pieces[0]) == 1:
        lines = _alone(scope, pieces[0][0], threshold)
        head = [f"  {line}" for line in _pointers(scope, aliased)]
    else:
        lines, head = _region(scope, pieces, threshold, aliased), []
    return _function(scope, head, lines)


def write_attention(call: Attention, types: Mapping[str, TensorType], *, threshold: int) -> KernelText:
    """Write the function of a call of FlexAttention."""
    writer = AttentionWriter(call, types, threshold)
    lines = writer.write()
    return _function(writer.scope, [f"  {line}" for line in _pointers(writer.scope, aliased=True)], lines)


def _function(scope: Scope, head: list[str], lines: list[str]) -> KernelText:
    head += [f"  const i64 n{number} = n[{number}];" for number in scope.sizes.values()]
    if scope.reports:
        head.append("  i32 bad = 0;")
        lines.append("  if (bad) *status |= bad;")
    body = "\n".join([SIGNATURE + " {", *head, *lines, "}"])
    return KernelText(body, tuple(scope.parameters), tuple(Expr(text) for text in scope.sizes))


def _alone(scope: Scope, kernel: Kernel, threshold: int) -> list[str]:
    plan = make_plan(kernel, threshold)
    lines = KernelWriter(scope, kernel, plan).write()
    return [*_threads(scope, total_work(kernel), threshold), *lines] if plan.threads != "none" else lines


def _threads(scope: Scope, work: Dim, threshold: int) -> list[str]:
    """One thread does all where the work is not worth the start of a region, which costs more for more threads (1.1 us
    for 2, 4.4 us for 16)."""
    each = threshold // TUNED.threshold_parts
    if isinstance(work, int) and work >= threshold + each * TUNED.many_threads:
        return []
    return [f"  if ({scope.dim(work)} < {threshold} + {each} * threads) threads = 1;"]


def _region(scope: Scope, stages: Sequence[Sequence[Kernel]], threshold: int, aliased: bool) -> list[str]:
    """All kernels in one region, or one after the other on one thread where there is too little work for more."""
    work: Dim = 0
    for stage in stages:
        for kernel in stage:
            work = work + total_work(kernel)
    alone = isinstance(work, int) and work < threshold
    lines: list[str] = []
    for number, stage in enumerate(stages):
        if number and not alone:
            lines.append("    #pragma omp barrier")
        lines += _stage(scope, stage, alone, aliased)
    if alone:
        return lines
    clause = " reduction(|:bad)" if scope.reports else ""
    head = f"  #pragma omp parallel num_threads(threads){clause}"
    return [*_threads(scope, work, threshold), head, "  {", *lines, "  }"]


def _stage(scope: Scope, kernels: Sequence[Kernel], alone: bool, aliased: bool) -> list[str]:
    """Kernels that need nothing of each other; those that differ in their buffers alone are turns of one loop, which
    the compiler reads once."""
    found: dict[tuple[bool, str], list[list[int]]] = {}
    for kernel in kernels:
        own = scope.sibling(kernel)
        plan = _part_plan(kernel, alone)
        loops = KernelWriter(own, kernel, plan, inside=not alone).write()
        pointers = [f"    {line}" for line in _pointers(own, aliased, "p[q[{}]]")]
        text = "\n".join([f"  {line}" for line in (*pointers, *loops)])
        is_single = plan.threads == "none" and not alone
        found.setdefault((is_single, text), []).append([scope.place(buffer) for buffer in own.parameters])
    return [line for (is_single, text), places in found.items() for line in _turns(text, places, is_single)]


def _part_plan(kernel: Kernel, alone: bool) -> Plan:
    """Within a region, what has one share is for whichever thread comes first."""
    plan = make_plan(kernel, 1 if alone else TUNED.shared_from)
    is_one = isinstance(total_work(kernel), int) and plan.threads == "outer" and shares(kernel, plan) == 1
    return plan._replace(threads="none") if alone or is_one else plan


def _turns(text: str, places: list[list[int]], is_single: bool) -> list[str]:
    """The text once for each row of places, which its pointers `q` are at; is_single: a turn is for one thread."""
    rows = ["{" + ", ".join(map(str, row)) + "}" for row in places]
    if len(rows) == 1:
        share = ["    #pragma omp single nowait"] * is_single
        return [*share, "    {", f"      static const i32 q[] = {rows[0]};", text, "    }"]
    share = [f"    #pragma omp for schedule(dynamic, {-(-len(rows) // TUNED.most_shares)}) nowait"] * is_single
    return [
        "    {",
        f"    static const i32 places[][{len(places[0])}] = {{{', '.join(rows)}}};",
        *share,
        f"    for (i64 turn = 0; turn < {len(rows)}; turn++) {{",
        "      const i32 *q = places[turn];",
        text,
        "    }",
        "    }",
    ]


def _pointers(scope: Scope, aliased: bool, place: str = "p[{}]") -> list[str]:
    """The pointers of the scope's parameters, of which number `{}` is found at `place`."""
    lines = []
    restrict = "" if aliased else "__restrict "
    for buffer, number in scope.parameters.items():
        storage = c_type(scope.buffers[buffer].dtype).storage
        const = "" if buffer in scope.written else "const "
        lines.append(f"{const}{storage} *{restrict}p{number} = ({const}{storage} *){place.format(number)};")
    return lines


_NAME = re.compile(r"\bsf_\w+")
_FUNCTION = re.compile(r"SF_INLINE (f32|f64) sf_(?:near_)?(\w+)_\1\(\1 \w+(?:, \1 \w+)*\) \{")
"""The head of a function of lanes alone: the compiler can make a form of it that takes vectors."""


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
    """The head and the definitions that `body` needs, directly or not, in the order of the file.

    Costly functions that `body` calls in many places are compiled once and called there: inlining each takes longer.
    """
    head, blocks = _blocks()
    places = Counter(_NAME.findall(body))
    wanted: set[str] = set()
    pending = [name for name in places if name in blocks]
    while pending:
        name = pending.pop()
        if name in wanted:
            continue
        wanted.add(name)
        pending.extend(used for used in set(_NAME.findall(blocks[name])) if used in blocks and used not in wanted)
    return "\n\n".join([head, *(_definition(text, places[name]) for name, text in blocks.items() if name in wanted)])


def _definition(text: str, places: int) -> str:
    function = _FUNCTION.match(text)
    if function is None or places <= TUNED.inlined_places or cost(function[2]) < COSTLY:
        return text
    return text.replace("SF_INLINE", "SF_CALLED", 1)


def emit_unit(
    graph: LoopGraph, *, threshold: int, kernels: Iterable[Kernel] | None = None, prefix: str = "k",
    attends: bool = True,
) -> tuple[str, tuple[KernelInfo, ...], dict[str, Launch | None], dict[int, list[Instruction]]]:  # fmt: skip
    """Source, entry points, the launch that stands for each kernel of `graph` (by the kernel's name; None for one that
    the launch of an earlier kernel runs too), and what stands for calls, by their numbers among the steps.

    kernels: those to write, one by one (default: all, in groups). prefix: the functions' names begin with it.
    attends: whether there are functions for FlexAttention.
    """
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    roots = memory_roots(graph)
    functions: dict[str, str] = {}
    infos: list[KernelInfo] = []
    launches: dict[str, Launch | None] = {}

    def launched(text: KernelText) -> Launch:
        """The launch of a function, which is written unless an equal one was."""
        if text.body not in functions:
            functions[text.body] = f"{prefix}{len(functions)}"
            infos.append(KernelInfo(functions[text.body], text.parameters))
        return Launch(functions[text.body], text.parameters, text.sizes)

    groups = list(group_kernels(graph, roots, threshold)) if kernels is None else [[[kernel]] for kernel in kernels]
    texts: dict[bytes, tuple[KernelText, list[int]]] = {}
    for stages in groups:
        names = list(dict.fromkeys(name for stage in stages for kernel in stage for name in buffers_of(kernel)))
        key = _key(stages, names, types, roots)
        if key not in texts:
            written = _write(stages, types, roots, threshold)
            texts[key] = written, [names.index(name) for name in written.parameters]
        text, places = texts[key]
        first, *rest = (kernel.name for stage in stages for kernel in stage)
        launch = launched(text._replace(parameters=tuple([names[place] for place in places])))
        launches |= {first: launch, **dict.fromkeys(rest)}
    own: dict[int, list[Instruction]] = {}
    for number, call in attentions_of(graph, types) if attends else ():
        if is_written(call, types):
            made: list[Instruction] = [Allocate(result, types[result]) for result in call.results if result]
            own[number] = [*made, launched(write_attention(call, types, threshold=threshold))]
    body = "\n\n".join(f'extern "C" void {name}{text}' for text, name in functions.items())
    source = prelude(body) + "\n\n" + body + "\n" if functions else ""
    every = (kernel for stages in groups for stage in stages for kernel in stage)
    if any(one.mask is not None for kernel in every for one in select(kernel.sections, Load | Store)):
        source = WITH_MASKS + source
    return source, tuple(infos), launches, own


def _key(stages: Stages, names: Sequence[str], types: Mapping[str, TensorType], roots: Mapping[str, str]) -> bytes:
    """What the text of kernels depends on, equal where only the names of kernels and buffers differ. names: of all
    buffers, in order of appearance."""
    numbers = {name: str(number) for number, name in enumerate(names)}
    loops = [[(kernel.axes, map_buffers(kernel, numbers).sections) for kernel in stage] for stage in stages]
    first: dict[str, int] = {}
    memory = [first.setdefault(roots.get(name, name), number) for number, name in enumerate(names)]
    return msgspec.msgpack.encode((loops, [types.get(name) for name in names], memory))


def _write(stages: Stages, types: Mapping[str, TensorType], roots: Mapping[str, str], threshold: int) -> KernelText:
    for kernel in (kernel for stage in stages for kernel in stage):
        for scan in select(kernel.sections, Scan):
            raise UnsupportedKernel(f"C++ kernels have no form of the scan %{scan.result} in {kernel.name}")
    text = write_function(stages, types, threshold=threshold)
    memory = [roots[name] for name in text.parameters]
    if len(set(memory)) == len(memory):
        return text
    return write_function(stages, types, threshold=threshold, aliased=True)


class CppTarget(Target):
    """C++ with OpenMP, compiled by the machine's compiler."""

    name, interface, suffix, forms = "cpp", 1, "cpp", FORMS.group
    devices = frozenset(("cpu", "cuda"))  # tensors on a CUDA device may stand in calls of ATen

    def emit(
        self, graph: LoopGraph, options: Options, hints: Hints = NO_HINTS, multiples: tuple[tuple[str, int], ...] = ()
    ) -> Unit:
        source, kernels, launches, own = emit_unit(graph, threshold=options.parallel_threshold)
        compiled = {"isa": options.isa, "sanitize": options.sanitize}
        return write_unit(graph, launches, own=own, target="cpp", source=source, kernels=kernels, **compiled)

    def load(self, units: Sequence[Unit], directory: Path, executor: Executor) -> Sequence[Bound]:
        from codegen.runtime.native import load_cpp  # loads torch

        return load_cpp(units, directory, executor)


CPP = CppTarget()
