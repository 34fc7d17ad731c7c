"""Where a template may stand for a call of ATen and the kernel behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from codegen.memory import memory_roots
from codegen.triton.epilogue import Epilogue, epilogue_of
from codegen.triton.products import Product, Types, product_of
from stagewire.graph import references
from stagewire.loop import Extern, Free, Kernel, Load, LoopGraph, Step, Store


@dataclass(frozen=True)
class Site:
    """A product, and perhaps the kernel behind it, which computes what `epilogue` says.

    kept: whether anything but the kernel uses the product. lent: whether others later take its memory over. fresh:
    buffers that the kernel makes in the memory of an operand, which a template still reads while it writes.
    """

    product: Product
    kernel: Kernel | None = None
    epilogue: Epilogue | None = None
    kept: bool = True
    lent: bool = False
    fresh: frozenset[str] = frozenset()


def find_sites(graph: LoopGraph, types: Types) -> tuple[LoopGraph, dict[int, Site]]:
    """The graph with each such call at once before its kernel; the sites, by the numbers of the calls among its steps.

    Where several calls feed one kernel, the last of them is one with it.
    """
    found: dict[str, Site] = {}
    memory = _Memory(graph)
    steps = list(graph.steps)
    for call in [step for step in reversed(steps) if isinstance(step, Extern)]:
        product = product_of(call, types)
        if product is None or len({types[name].device for name in (*product.operands, product.result)}) != 1:
            continue
        place = steps.index(call)
        site = memory.fused(product, steps, place, types)
        if site is None or any(site.kernel is other.kernel for other in found.values()):
            site = Site(product)
        else:
            steps = memory.joined(steps, place, site)
        found[product.result] = site
    numbers = {step.results[0]: n for n, step in enumerate(steps) if isinstance(step, Extern) and step.results}
    return replace(graph, steps=tuple(steps)), {numbers[name]: site for name, site in found.items()}


class _Memory:
    """Who uses and writes the memory of a graph's buffers."""

    def __init__(self, graph: LoopGraph) -> None:
        self.roots = memory_roots(graph)
        self.bases = {buffer.name: buffer.base for buffer in graph.buffers if buffer.base is not None}
        self.reusing = {buffer.name: buffer.reuse for buffer in graph.buffers if buffer.reuse is not None}
        self.inputs = set(graph.inputs)
        self.outputs = {name for output in graph.outputs for name in references(output)}

    def fused(self, product: Product, steps: list[Step], place: int, types: Types) -> Site | None:
        """The site of the call at `place` with the kernel that is the first to use its result, if that fits."""
        windows = {product.result, *(view for view, base in self.bases.items() if base == product.result)}
        users = [n for n, step in enumerate(steps) if n > place and windows & set(_read(step))]
        kernel = steps[users[0]] if users else None
        if not isinstance(kernel, Kernel) or windows & set(_stored(kernel)):
            return None
        if {types[name].device for name in (*_read(kernel), *_stored(kernel))} != {types[product.result].device}:
            return None
        operands = {self.roots[name] for name in product.operands}
        if any(operands & self.written(step) for step in steps[place + 1 : users[0]]):
            return None
        overwriting = {name for name in _stored(kernel) if self.roots[name] in operands}
        before = {name for step in steps[: users[0]] if isinstance(step, Kernel) for name in _stored(step)}
        if any(name not in self.reusing or name in before for name in overwriting) or operands & self.inputs & {
            self.roots[name] for name in overwriting
        }:
            return None
        epilogue = epilogue_of(product, kernel, types, self.bases)
        if epilogue is None:
            return None
        kept = len(users) > 1 or bool(windows & self.outputs)
        lent = any(old == product.result and new not in _stored(kernel) for new, old in self.reusing.items())
        return Site(product, kernel, epilogue, kept, lent, frozenset(overwriting))

    def written(self, step: Step) -> set[str]:
        """The roots of memory that a step may write."""
        match step:
            case Kernel():
                return {self.roots[name] for name in _stored(step)}
            case Extern(target):
                namespace, name, *_ = target.split(".")
                is_pure = namespace == "aten" and not name.endswith("_") and "out" not in step.kwargs
                return set() if is_pure else {self.roots[name] for name in _read(step)}
        return set()

    def joined(self, steps: list[Step], place: int, site: Site) -> list[Step]:
        """The steps with the call at `place` before its kernel; what it reads is freed behind that, at the earliest."""
        at = next(n for n, step in enumerate(steps) if step is site.kernel)
        operands = {self.roots[name] for name in site.product.operands}
        between = steps[place + 1 : at]
        late = [step for step in between if isinstance(step, Free) and self.roots[step.buffer] in operands]
        rest = steps[at + 1 :]
        ends = [step for step in rest if step == Free(site.product.result) and not site.kept]
        return [
            *steps[:place],
            *(step for step in between if step not in late),
            *steps[place : place + 1],
            *steps[at : at + 1],
            *ends,
            *late,
            *(step for step in rest if step not in ends),
        ]


def _read(step: Step) -> Iterator[str]:
    """Buffers that a step takes; those that a kernel only writes are not among them."""
    match step:
        case Kernel(sections=sections):
            yield from (s.buffer for section in sections for s in section.statements if isinstance(s, Load))
        case Extern(args=args, kwargs=kwargs):
            yield from (name for arg in (*args, *kwargs.values()) for name in references(arg))


def _stored(kernel: Kernel) -> tuple[str, ...]:
    """Buffers that a kernel writes."""
    return tuple(s.buffer for section in kernel.sections for s in section.statements if isinstance(s, Store))
