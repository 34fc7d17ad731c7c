"""Small pointwise kernels that need nothing of each other, in one launch: an optimizer's step, `torch._foreach_*`.

    for i in 36864 { y0[i] = f(x0[i]) }          blocks 0..35: f of x0, y0 and 36864
    for i in 64 { y1[i] = f(x1[i]) }       =>    block 36:     f of x1, y1 and 64        a launch
    for i in 64 { y2[i] = f(x2[i]) }             block 37:     f of x2, y2 and 64

Kernels are alike that differ in their buffers and in how many points they have. A program selects the buffers, the
number of points and the first block of the kernel that its block belongs to, and computes what all of them do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from codegen.memory import accesses, allocated, buffers_of, memory_roots, taken_by_value
from codegen.triton.emit import emit_kernel
from codegen.triton.plan import POINTWISE_TILE, Plan
from stagewire.expr import symbol
from stagewire.loop import Axis, AxisAtom, Compute, Extern, Index, Kernel, Load, LoopGraph, Store, Term
from stagewire.program import KernelInfo
from stagewire.types import TensorType

MOST_POINTS = 1 << 20
"""Of a kernel that gains by it: a larger one takes longer than its launch."""

MOST_BUFFERS = 240
"""That one launch takes."""

MOST_BYTES = 4 << 20
"""What kernels of a launch but the first may allocate: it is there earlier than it would be otherwise."""

TOGETHER = 8
"""Elements that are loaded at once: whether all numbers of points are multiples of it is part of what is alike."""


@dataclass(frozen=True)
class Form:
    """What kernels that are alike have in common: the text of a function `each`, the dtypes of its buffers, which of
    them it takes by value, and whether the numbers of points are multiples of `TOGETHER`."""

    text: str
    dtypes: tuple[str, ...]
    values: tuple[int, ...]
    in_vectors: bool


@dataclass
class Group:
    """Kernels of one launch, each with its buffers. read, written: the memory that these touch, and any kernel between
    them. bytes: what the later ones allocate."""

    form: Form
    kernels: list[Kernel] = field(default_factory=list)
    buffers: list[tuple[str, ...]] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    bytes: int = 0

    @property
    def parameters(self) -> tuple[str, ...]:
        """The buffers of the launch: those that all kernels share once, then the others, kernel by kernel."""
        shared = self.shared
        once = (self.buffers[0][n] for n in sorted(shared))
        return (*once, *(name for names in self.buffers for n, name in enumerate(names) if n not in shared))

    @property
    def shared(self) -> frozenset[int]:
        """Places among a kernel's buffers of what is the same in all."""
        return frozenset(n for n, names in enumerate(zip(*self.buffers, strict=True)) if len(set(names)) == 1)

    def has_room(self, count: int, size: int) -> bool:
        return (len(self.kernels) + 1) * count <= MOST_BUFFERS and self.bytes + size <= MOST_BYTES

    def is_free_of(self, read: set[str], written: set[str]) -> bool:
        """Whether a kernel may run at the place of the first one."""
        return not (read & self.written or written & (self.read | self.written))


def groups_of(
    graph: LoopGraph, types: dict[str, TensorType], device: str, others: Collection[str] = frozenset()
) -> list[Group]:
    """The kernels on a device that run in launches of several; none of `others`."""
    roots, declared = memory_roots(graph), {buffer.name: buffer for buffer in graph.buffers}
    found: list[Group] = []
    current: dict[Form, Group] = {}
    for step in graph.steps:
        if isinstance(step, Extern):
            current.clear()
        if not isinstance(step, Kernel):
            continue
        loaded, stored = accesses(step)
        read, written = {roots[name] for name in loaded}, {roots[name] for name in stored}
        names = buffers_of(step)
        form = None if step.name in others else _form(step, names, types, device)
        if form is not None:
            made = [allocated(declared[name]) for name in stored]
            size = sum(bytes_ if isinstance(bytes_, int) else MOST_BYTES + 1 for bytes_ in made)
            group = current.get(form)
            if group is None or not group.is_free_of(read, written) or not group.has_room(len(names), size):
                group = current[form] = Group(form)
                found.append(group)
            else:
                group.bytes += size
            group.kernels.append(step)
            group.buffers.append(names)
        for group in current.values():
            group.read |= read
            group.written |= written
    return [group for group in found if len(group.kernels) > 1]


def _form(kernel: Kernel, names: tuple[str, ...], types: dict[str, TensorType], device: str) -> Form | None:
    """What a kernel has in common with those that are alike; None where it runs alone."""
    if len(kernel.axes) != 1 or len(kernel.sections) != 1 or kernel.sections[0].axes:
        return None
    (axis,), statements = kernel.axes, kernel.sections[0].statements
    if not isinstance(axis.size, int) or not 0 < axis.size <= MOST_POINTS:
        return None
    here, one = Index(0, (Term(1, AxisAtom(axis.name)),)), Index(0)
    for statement in statements:
        match statement:
            case Load(index=index):
                is_simple = index in (here, one)
            case Store(index=index, mode=mode):
                is_simple = index == here and mode == "set"
            case _:
                is_simple = isinstance(statement, Compute)
        if not is_simple:
            return None
    by_value = taken_by_value(kernel, types)
    if any(types[name].device != device and name not in by_value for name in names):
        return None
    each = replace(kernel, name="each", axes=(Axis(axis.name, symbol("points")),))
    text, _ = emit_kernel(_tile(each), names, types, by_value)
    dtypes = tuple(types[name].dtype for name in names)
    values = tuple(n for n, name in enumerate(names) if name in by_value)
    return Form(text, dtypes, values, axis.size % TOGETHER == 0)


def _tile(kernel: Kernel) -> Plan:
    return Plan(kernel, "row", POINTWISE_TILE, 1)


def emit_group(group: Group) -> tuple[str, KernelInfo]:
    """The text of the function that a group is launched as, and what is launched."""
    name, shared, unit = group.kernels[0].name, sorted(group.shared), TOGETHER if group.form.in_vectors else 1
    counts = [kernel.axes[0].size for kernel in group.kernels]
    blocks = [-(-count // POINTWISE_TILE) for count in counts]  # type: ignore[operator]
    own = [n for n in range(len(group.buffers[0])) if n not in shared]
    lines = ["block = tl.program_id(0)"]
    lines += [f"q{n} = p{place}" for place, n in enumerate(shared)]
    start = 0
    for number, (count, size) in enumerate(zip(counts, blocks, strict=True)):
        selected = {f"q{n}": f"p{len(shared) + number * len(own) + place}" for place, n in enumerate(own)}
        selected |= {"count": str(count // unit), "start": str(start)}  # type: ignore[operator]
        if number:
            lines.append(f"later = block >= {start}")
        lines += [f"{q} = tl.where(later, {p}, {q})" if number else f"{q} = {p}" for q, p in selected.items()]
        start += size
    arguments = ", ".join([*(f"q{n}" for n in range(len(group.buffers[0]))), f"count * {unit}", "False"])
    lines.append(f"{name}_each(block - start, {arguments}, XBLOCK, RBLOCK)")
    parameters = group.parameters
    each = group.form.text.replace("def each(", f"def {name}_each(block, ").replace("tl.program_id(0)", "block")
    taken = ", ".join([*(f"p{n}" for n in range(len(parameters))), "XBLOCK: tl.constexpr", "RBLOCK: tl.constexpr"])
    text = "\n    ".join([f"{each}\n\n@triton.jit\ndef {name}({taken}):", *lines]) + "\n"
    tile = _tile(group.kernels[0])
    constants = (("XBLOCK", tile.outer), ("RBLOCK", tile.inner))
    return text, KernelInfo(name, parameters, grid=(sum(blocks),), constants=constants, num_warps=tile.warps)
