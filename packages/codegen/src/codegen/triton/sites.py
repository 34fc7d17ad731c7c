"""Where a template may stand for a call of ATen, the kernel before and the kernel behind it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from msgspec.structs import replace

from codegen.memory import memory_roots
from codegen.triton.product_fusion import SIDES, Epilogue, Prologue, epilogue_of, prologue_of
from codegen.triton.products import Product, Types, product_of
from stagewire.graph import references
from stagewire.loop import Extern, Free, Kernel, LoopGraph, Step
from stagewire.statements import reads_of, writes_of


@dataclass(frozen=True)
class Site:
    """A product, and perhaps the kernel behind it, which computes what `epilogue` says, and the one at once before it,
    which makes an operand.

    kept: whether anything but the kernel uses the product. lent: whether others later take its memory over. fresh:
    buffers that the kernel makes in the memory of an operand, which a template still reads while it writes.
    """

    product: Product
    kernel: Kernel | None = None
    epilogue: Epilogue | None = None
    kept: bool = True
    lent: bool = False
    fresh: frozenset[str] = frozenset()
    prologue: Prologue | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those of which a template does the work."""
        behind = () if self.kernel is None else (self.kernel,)
        return behind if self.prologue is None else (self.prologue.kernel, *behind)


def find_sites(graph: LoopGraph, types: Types) -> tuple[LoopGraph, dict[int, Site]]:
    """The graph with each such call at once before its kernel, and behind the one of its operand; the sites, by the
    numbers of the calls among its steps.

    Where several calls feed one kernel, the last of them is one with it. A kernel that reads a product stands behind
    that, not before another.
    """
    found: dict[str, Site] = {}
    memory = _Memory(graph, types)
    steps = list(graph.steps)
    for call in [step for step in reversed(steps) if isinstance(step, Extern)]:
        product = product_of(call, types)
        if product is None or len({types[name].device for name in (*product.operands, product.result)}) != 1:
            continue
        place = steps.index(call)
        taken = [kernel for other in found.values() for kernel in other.kernels]
        site = memory.fused(product, steps, place, types)
        site = Site(product) if site is None or site.kernel in taken else site
        prologue = memory.prologue(product, steps, place, types)
        if prologue is not None and prologue.kernel not in taken:
            site = memory.with_prologue(site, prologue, steps, place, types)
        found[product.result] = site
        steps = memory.gathered(steps, place, site)
    numbers = {step.results[0]: n for n, step in enumerate(steps) if isinstance(step, Extern) and step.results}
    return replace(graph, steps=tuple(steps)), {numbers[name]: site for name, site in found.items()}


class _Memory:
    """Who uses and writes the memory of a graph's buffers."""

    def __init__(self, graph: LoopGraph, types: Types) -> None:
        self.roots = memory_roots(graph)
        self.bases = {buffer.name: buffer.base for buffer in graph.buffers if buffer.base is not None}
        self.reusing = {buffer.name: buffer.reuse for buffer in graph.buffers if buffer.reuse is not None}
        self.inputs = set(graph.inputs)
        self.outputs = {name for output in graph.outputs for name in references(output)}
        calls = [step for step in graph.steps if isinstance(step, Extern)]
        self.products = {call.results[0] for call in calls if product_of(call, types) is not None}

    def prologue(self, product: Product, steps: list[Step], place: int, types: Types) -> Prologue | None:
        """The kernel that makes an operand for the call at `place` alone, if a template can do that."""
        bases = {side: self.bases.get(name, name) for side, name in zip(SIDES, product.operands, strict=False)}
        for side, base in bases.items():
            windows = {base, *(view for view, of in self.bases.items() if of == base)}
            writers = [n for n, step in enumerate(steps) if isinstance(step, Kernel) and base in writes_of(step)]
            users = [n for n, step in enumerate(steps) for name in reads_of(step) if name in windows]
            if len(writers) != 1 or users != [place] or windows & (self.outputs | self.inputs) or writers[0] > place:
                continue
            kernel = steps[writers[0]]
            assert isinstance(kernel, Kernel)
            devices = {types[name].device for name in (*reads_of(kernel), *writes_of(kernel))}
            read = {self.roots[name] for name in reads_of(kernel)}
            between = steps[writers[0] + 1 : place]
            if devices != {types[product.result].device} or any(read & self.written(step) for step in between):
                continue
            if any(self.bases.get(name, name) in self.products for name in reads_of(kernel)):
                continue
            found = prologue_of(product, side, kernel, types)
            if found is not None:
                return found
        return None

    def with_prologue(self, site: Site, prologue: Prologue, steps: list[Step], place: int, types: Types) -> Site:
        """The site with a prologue, if what makes the operand may stand before it and the operand is gone behind it."""
        heirs = {new for new, old in self.reusing.items() if old == prologue.buffer}
        if heirs - set(writes_of(site.kernel) if site.kernel is not None else ()):
            return site
        if not heirs and Free(prologue.buffer) not in steps:
            return site
        if site.kernel is None:
            return dataclasses.replace(site, prologue=prologue)
        return self.fused(site.product, steps, place, types, prologue) or site

    def gathered(self, steps: list[Step], place: int, site: Site) -> list[Step]:
        """The steps with those of a site one after the other; what they read is freed behind."""
        own = [steps[place], *site.kernels]
        numbers = [n for n, step in enumerate(steps) if any(step is one for one in own)]
        first, last = numbers[0], numbers[-1]
        read = {self.roots[name] for name in (*site.product.operands, *(site.prologue.loads if site.prologue else ()))}
        between = [step for n, step in enumerate(steps) if first < n < last and n not in numbers]
        late = [step for step in between if isinstance(step, Free) and self.roots[step.buffer] in read]
        own = [steps[n] for n in numbers]
        ends = [Free(site.product.result)] if site.kernel is not None and not site.kept else []
        ends += [Free(site.prologue.buffer)] if site.prologue is not None else []
        rest = [*late, *steps[last + 1 :]]
        return [
            *steps[:first],
            *(step for step in between if step not in late),
            *own,
            *(step for step in rest if step in ends),
            *(step for step in rest if step not in ends),
        ]

    def fused(
        self, product: Product, steps: list[Step], place: int, types: Types, prologue: Prologue | None = None
    ) -> Site | None:
        """The site of the call at `place` with the kernel that is the first to use its result, if that fits."""
        windows = {product.result, *(view for view, base in self.bases.items() if base == product.result)}
        users = [n for n, step in enumerate(steps) if n > place and windows & set(reads_of(step))]
        kernel = steps[users[0]] if users else None
        if not isinstance(kernel, Kernel) or windows & set(writes_of(kernel)):
            return None
        if {types[name].device for name in (*reads_of(kernel), *writes_of(kernel))} != {types[product.result].device}:
            return None
        operands = {self.roots[name] for name in (*product.operands, *(prologue.loads if prologue else ()))}
        if any(operands & self.written(step) for step in steps[place + 1 : users[0]]):
            return None
        overwriting = {name for name in writes_of(kernel) if self.roots[name] in operands}
        before = {name for step in steps[: users[0]] if isinstance(step, Kernel) for name in writes_of(step)}
        if any(name not in self.reusing or name in before for name in overwriting) or operands & self.inputs & {
            self.roots[name] for name in overwriting
        }:
            return None
        epilogue = epilogue_of(product, kernel, types, self.bases)
        if epilogue is None:
            return None
        kept = len(users) > 1 or bool(windows & self.outputs)
        lent = any(old == product.result and new not in writes_of(kernel) for new, old in self.reusing.items())
        return Site(product, kernel, epilogue, kept, lent, frozenset(overwriting), prologue)

    def written(self, step: Step) -> set[str]:
        """The roots of memory that a step may write."""
        match step:
            case Kernel():
                return {self.roots[name] for name in writes_of(step)}
            case Extern(target):
                namespace, name, *_ = target.split(".")
                is_pure = namespace == "aten" and not name.endswith("_") and "out" not in step.kwargs
                return set() if is_pure else {self.roots[name] for name in reads_of(step)}
        return set()
