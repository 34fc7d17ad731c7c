"""One direction of a `Loop` document as a Triton module and its launches: pure data, nothing is imported."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from codegen.choices import Bound, Templates, chosen
from codegen.cpp.emit import emit_unit
from codegen.errors import UnsupportedKernel
from codegen.flex_attention import attentions_of
from codegen.memory import buffers_of, taken_by_value
from codegen.targets import Executor, Target
from codegen.triton import flex_kernels, tuning
from codegen.triton.compiling import start_server
from codegen.triton.depthwise import depthwise_of, stand_in
from codegen.triton.emit import EARLY, emit_kernel, wide_constant
from codegen.triton.expressions import FORMS
from codegen.triton.horizontal_fusion import Group, emit_group, groups_of
from codegen.triton.plan import plan
from codegen.triton.prelude import PRELUDE
from codegen.triton.products import Tile, Types, tiles_for
from codegen.triton.scans import memory_of, words_of
from codegen.triton.sites import Site, find_sites
from codegen.triton.template import HELPERS, emit_template, parameters_of, template_info
from codegen.wrapper import write_unit
from stagewire import loop
from stagewire.expr import Dim, symbols_of
from stagewire.loop import Extern, Kernel, LoopGraph
from stagewire.program import Instruction, KernelInfo, Launch, Unit
from stagewire.sizes import NO_HINTS, Hints
from stagewire.statements import points_of, select
from stagewire.types import contiguous

if TYPE_CHECKING:
    from codegen.stage import Options


def emit_triton_unit(graph: LoopGraph, options: Any, hints: Hints = NO_HINTS) -> Unit:
    """One function for each distinct kernel (kernels that differ only in their buffers share it), and for each distinct
    product, if it may be computed by one.

    Kernels on memory of the CPU, in a program for a CUDA device, are written in C++.
    """
    graph = with_lookback(graph, hints)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    graph, sites = find_sites(graph, types) if options.autotune != "off" else (graph, {})
    made = _Functions()
    launches: dict[str, Launch | None] = {}
    on_host: list[Kernel] = []
    timed = {kernel.name for site in sites.values() for kernel in site.kernels}
    device = min({type_.device for type_ in types.values()} - {"cpu"}, default="cpu")
    is_mixed = device != "cpu"  # else: for Triton's interpreter
    for group in groups_of(graph, types, device, timed):
        first, *rest = (kernel.name for kernel in group.kernels)
        launches |= {first: made.fused(group, types), **dict.fromkeys(rest)}
    for step in graph.steps:
        if not isinstance(step, Kernel) or step.name in launches:
            continue
        devices = sorted({types[name].device for name in set(buffers_of(step)) - taken_by_value(step, types)})
        if len(devices) > 1:
            raise UnsupportedKernel(f"kernel {step.name} works on several devices: {', '.join(devices)}")
        if devices == ["cpu"] and is_mixed:
            on_host.append(step)
            continue
        launches[step.name] = made.launch(step, types, hints)
    templates = {n: made.templates(f"product_{n}", site, types) for n, site in sites.items()}
    own = made.stand_ins(graph, types, hints, is_mixed) if options.depthwise else {}
    own |= made.attentions(graph, types, is_mixed)
    host_source, host_kernels, host_launches, host_own = emit_unit(
        graph, threshold=options.parallel_threshold, kernels=on_host, prefix="host", attends=is_mixed
    )
    source = "\n\n".join([PRELUDE, *([HELPERS] if templates else []), *made.texts])
    own |= host_own
    on_cpu = {"host_source": host_source, "host_kernels": host_kernels}
    all_launches, kernels = launches | host_launches, tuple(made.kernels)
    unit = write_unit(graph, all_launches, templates, own, target="triton", source=source, kernels=kernels, **on_cpu)
    forced = dict.fromkeys(range(len(unit.choices)), 0)
    return chosen(unit, forced) if options.autotune == "force" else unit


def with_lookback(graph: LoopGraph, hints: Hints = NO_HINTS) -> LoopGraph:
    """The graph with memory for scans of few long rows, in which programs tell each other what their parts come to
    (`scans.py`), and with what clears it."""
    devices = {buffer.name: buffer.type.device for buffer in graph.buffers}
    steps: list[loop.Step] = []
    buffers = list(graph.buffers)
    for step in graph.steps:
        tiles = plan(step, hints) if isinstance(step, Kernel) and select(step.sections, loop.Scan) else None
        if tiles is None or not tiles.chained:
            steps.append(step)
            continue
        kernel, name = tiles.kernel, memory_of(tiles.kernel)
        size = 1 + points_of(kernel.axes) * tiles.parts * sum(map(words_of, select(kernel.sections, loop.Scan)))
        device = next(devices[s.buffer] for s in select(kernel.sections, loop.Store))
        buffers.append(loop.Buffer(name, replace(contiguous("int64", (size,)), device=device), "kernel"))
        clear = loop.Store(name, loop.Index(0, (loop.Term(1, loop.AxisAtom("i")),)), 0)
        steps += [
            Kernel(f"{kernel.name}_clear", (loop.Axis("i", size),), (loop.Section((), (clear,)),)),
            step,
            loop.Free(name),
        ]
    return replace(graph, steps=tuple(steps), buffers=tuple(buffers))


class _Functions:
    """The functions of a module, each once, and the kernels that are made of them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.kernels: list[KernelInfo] = []
        self.known: dict[str, tuple[KernelInfo, ...]] = {}

    def launch(self, kernel: Kernel, types: Types, hints: Hints) -> Launch:
        """The launch of a loop kernel."""
        tiles = plan(kernel, hints)
        parameters = buffers_of(kernel) + ((memory_of(kernel),) if tiles.chained else ())
        body, sizes = emit_kernel(tiles, parameters, types, taken_by_value(kernel, types))
        constants = (*wide_constant(sizes), ("XBLOCK", tiles.outer), ("RBLOCK", tiles.inner))
        info = KernelInfo(kernel.name, parameters, tiles.grid, constants, tiles.num_warps, registers=tiles.registers)
        return self.single(body, info, types, sizes)

    def fused(self, group: Group, types: Types) -> Launch:
        """The launch of several kernels."""
        return self.single(*emit_group(group, types), types)

    def templates(self, name: str, site: Site, types: Types) -> Templates:
        """The launches of the kernels that may stand for a product and what is behind it."""
        tiles = tiles_for(site.product, types[site.product.left].dtype)
        plain = self.tiled(name, dataclasses.replace(site, prologue=None), tiles, types)
        made, prologued = None, ()
        if site.prologue is not None:
            made, few = site.prologue.buffer, tiles[: tuning.SM_90.timed_prologues]
            prologued = self.tiled(f"{name}_whole", site, few, types)
        result, has_kernel = site.product.result, site.kernel is not None
        return Templates(plain, result, site.kept, has_kernel, site.lent, site.fresh, made, prologued)

    def tiled(self, name: str, site: Site, tiles: tuple[Tile, ...], types: Types) -> tuple[Launch, ...]:
        """The launches of one function with each of these tiles."""
        parameters = parameters_of(site)
        body = emit_template(name, site, types)
        infos = tuple(template_info(f"{name}_{n}", name, site, tile) for n, tile in enumerate(tiles))
        found = self.once(body, infos, [types[one].dtype for one in parameters])
        return tuple(Launch(info.name, parameters) for info in found)

    def stand_ins(self, graph: LoopGraph, types: Types, hints: Hints, is_mixed: bool) -> dict[int, list[Instruction]]:
        """What computes depthwise convolutions, by the numbers of the calls among the steps."""
        made = {}
        for n, step in enumerate(graph.steps):
            call = depthwise_of(step, types) if isinstance(step, Extern) else None
            if isinstance(step, Extern) and call and not (is_mixed and types[call.image].device == "cpu"):
                made[n] = stand_in(step, call, types, hints, f"depthwise_{n}", self.single)
        return {n: instructions for n, instructions in made.items() if instructions}

    def attentions(self, graph: LoopGraph, types: Types, is_mixed: bool) -> dict[int, list[Instruction]]:
        """What computes FlexAttention, by the numbers of the calls among the steps."""
        return {
            n: flex_kernels.stand_in(call, types, f"attention_{n}", self.single)
            for n, call in attentions_of(graph, types)
            if not (is_mixed and types[call.query].device == "cpu") and flex_kernels.is_launched(call, types)
        }

    def single(self, body: str, info: KernelInfo, types: Types, sizes: tuple[Dim, ...] = ()) -> Launch:
        """The launch of the one kernel of a function."""
        (found,) = self.once(body, (info,), ([types[name].dtype for name in info.parameters], sizes))
        return Launch(found.name, info.parameters, sizes)

    def once(self, body: str, infos: tuple[KernelInfo, ...], described: object) -> tuple[KernelInfo, ...]:
        """The kernels of a function, which is written unless the same one was, for kernels that are alike.

        It is named by its number in the module: the texts of equal kernels are equal, whatever is in front of them.
        A text does not tell the whole grid: neither how many points there are where it needs no masks, nor the batches.
        """
        function = infos[0].function or infos[0].name
        text = functools.partial(re.sub, rf"(?<![\w.]){re.escape(function)}(?=\w*\()", string=body)
        key = text("") + repr(([replace(info, name="", parameters=(), function="") for info in infos], described))
        if key not in self.known:
            own = f"{re.sub('_?[0-9]+', '', function) or 'kernel'}{len(self.known)}"
            named = [replace(info, name=info.name.replace(function, own, 1)) for info in infos]
            shared = own if infos[0].function else ""
            self.known[key] = tuple(replace(i, function=shared, constants=(*i.constants, EARLY)) for i in named)
            self.kernels += self.known[key]
            self.texts.append(text(own))
        return self.known[key]


class TritonTarget(Target):
    """Triton, and C++ for kernels on memory of the CPU in the same program."""

    name, interface, suffix, forms = "triton", 1, "py", FORMS.group
    devices = frozenset(("cpu", "cuda"))  # Triton's interpreter runs on the CPU

    def emit(
        self, graph: LoopGraph, options: Options, hints: Hints = NO_HINTS, multiples: tuple[tuple[str, int], ...] = ()
    ) -> Unit:
        unit = emit_triton_unit(graph, options, hints)
        taken = [size for one in unit.instructions if isinstance(one, Launch) for size in one.sizes]
        named = {name for size in taken for name in symbols_of(size)}
        divisible = tuple(one for one in multiples if one[0] in named)
        return replace(unit, multiples=divisible, isa=options.isa, sanitize=options.sanitize)

    def load(self, units: Sequence[Unit], directory: Path, executor: Executor) -> Sequence[Bound]:
        from codegen.runtime.triton_loader import load_triton  # loads torch

        return load_triton(units, directory, executor)

    def prepare(self, directory: Path) -> None:
        from codegen.runtime.native import prepare_machine

        start_server()
        prepare_machine(directory)


TRITON = TritonTarget()
