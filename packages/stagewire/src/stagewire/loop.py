"""`Loop`: buffers, fused loop kernels, extern calls, in order of execution.

    loop      ::= binding forward:loopgraph backward:loopgraph?
    loopgraph ::= buffer* input:name* output:name* step* decision*
    step      ::= kernel | extern | free
    kernel    ::= name axis* section*                 the axes are parallel; sections run in order at each outer point
    section   ::= axis* statement*                    the statements run at every point of the inner axes
    statement ::= load | store | compute | index | reduce | scan
    index     ::= constant + coefficient*atom + ...   atom ::= axis | value | index//divisor | index%divisor

Meaning of a kernel: for every point of its outer axes (in any order), for every section in order, for every point of
the section's inner axes (in any order for stores; reductions combine in any order), run the statements. A value of an
earlier statement of the same section is read at the same point. The result of a `Reduce` is defined after its section
and is then readable by every later section at the same outer point. The result of a `Scan` is a value of the point, as
that of any other statement: what was met up to it, in row-major order of the section's axes. A section without inner
axes runs once per outer point. Values computed in a section without inner axes are readable later too. What a section
stores is visible to the loads of later sections at the same outer point (never to other outer points of the same
kernel), so a kernel may store to a buffer and load it again; two buffers share memory only where `Buffer.reuse` or
`Buffer.base` says so. A reduction over no points gives its neutral element. Two kernels may write parts of one buffer
(the pieces of a concatenation, a copy and then a scatter): it exists from the first of them on.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stagewire.expr import Dim
from stagewire.grad import Binding
from stagewire.graph import Arg, Effect, NonFinite, Ref, SourceLine
from stagewire.types import DType, TensorType


class AxisAtom(msgspec.Struct, frozen=True, tag="axis", tag_field="kind"):
    """The current value of a loop axis."""

    name: str


class ValueAtom(msgspec.Struct, frozen=True, tag="value", tag_field="kind"):
    """An integer SSA value used as an index (indirect access)."""

    name: str


class FloorDivAtom(msgspec.Struct, frozen=True, tag="floor_div", tag_field="kind"):
    numerator: Index
    divisor: Dim


class ModAtom(msgspec.Struct, frozen=True, tag="mod", tag_field="kind"):
    numerator: Index
    divisor: Dim


Atom = AxisAtom | ValueAtom | FloorDivAtom | ModAtom


class Term(msgspec.Struct, frozen=True):
    coefficient: Dim
    atom: Atom


class Index(msgspec.Struct, frozen=True):
    """constant + sum of coefficient * atom, in elements from the start of the buffer's storage offset."""

    constant: Dim = 0
    terms: tuple[Term, ...] = ()


Operand = bool | int | float | Ref | NonFinite


class Load(msgspec.Struct, frozen=True, tag="load", tag_field="kind"):
    """result = buffer[index]; with a mask (a bool value), `other` where the mask is false and no access is made.

    Until memory is laid out, the passes of loopir hold coordinates in place of the index of a load or store: a tuple.
    """

    result: str
    buffer: str
    index: Index
    dtype: DType
    mask: Ref | None = None
    other: Operand = 0


BY_VALUE = frozenset({"int64", "float32", "float64"})
"""Dtypes of 0-dim buffers on the CPU that kernels on a GPU may load: they take the number when they are launched."""


StoreMode = Literal["set", "atomic_add", "sum"]


class Store(msgspec.Struct, frozen=True, tag="store", tag_field="kind"):
    """buffer[index] = value (mode "set"), or += atomically where points may collide (mode "atomic_add"), or the sum of
    the values of all points of the kernel at this index (mode "sum"; without a mask)."""

    buffer: str
    index: Index
    value: Operand
    mode: StoreMode = "set"
    mask: Ref | None = None


class Compute(msgspec.Struct, frozen=True, tag="compute", tag_field="kind"):
    """result = op(operands): an elementwise loop op (the list with semantics is in loopir's README)."""

    result: str
    op: str
    operands: tuple[Operand, ...]
    dtype: DType


class IndexValue(msgspec.Struct, frozen=True, tag="index_value", tag_field="kind"):
    """result = the integer value of an index expression."""

    result: str
    index: Index
    dtype: DType = "int64"


ReduceKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford", "xor_sum"]


class Reduce(msgspec.Struct, frozen=True, tag="reduce", tag_field="kind"):
    """Combine `operand` over the section's inner axes.

    sum prod any all: one result. max min: nan-propagating, one result. argmax argmin: one int64 result, the row-major
    position among the inner axes (first of equals; nan wins). welford: three results: mean, sum of squared deviations,
    count. `dtype` is the dtype of accumulation and of the result.
    """

    results: tuple[str, ...]
    reduction: ReduceKind
    operand: Operand
    dtype: DType


ScanKind = Literal["sum", "prod", "max", "min", "logaddexp"]


class Scan(msgspec.Struct, frozen=True, tag="scan", tag_field="kind"):
    """result = `operand` combined over this point and those before it, in row-major order of the section's inner axes.

    max min: nan-propagating. logaddexp: log(exp(a) + exp(b)). `dtype` is the dtype of the operand, of accumulation and
    of the result. Rounding may differ with the order in which partial results are combined; each result is a
    combination of its own points alone.
    """

    result: str
    scan: ScanKind
    operand: Operand
    dtype: DType


Statement = Load | Store | Compute | IndexValue | Reduce | Scan


class Axis(msgspec.Struct, frozen=True):
    """A loop of `size` iterations from 0."""

    name: str
    size: Dim


class Section(msgspec.Struct, frozen=True):
    axes: tuple[Axis, ...]
    statements: tuple[Statement, ...]


class Kernel(msgspec.Struct, frozen=True, tag="kernel", tag_field="kind"):
    """A fused loop nest; `origins` are the names of the prim values that it computes."""

    name: str
    axes: tuple[Axis, ...]
    sections: tuple[Section, ...]
    origins: tuple[str, ...] = ()
    line: SourceLine | None = None


class Extern(msgspec.Struct, frozen=True, tag="extern", tag_field="kind"):
    """results = target(*args, **kwargs) by ATen ("aten.addmm.default"); `Ref`s name buffers.

    The results are allocated by the call itself ("" where a result is None or unused). effect: as of a graph's node.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    results: tuple[str, ...]
    line: SourceLine | None = None
    effect: Effect | None = None


class Free(msgspec.Struct, frozen=True, tag="free", tag_field="kind"):
    """The buffer is not used after this point."""

    buffer: str


Step = Kernel | Extern | Free

BufferRole = Literal["input", "kernel", "extern", "view"]


class Buffer(msgspec.Struct, frozen=True):
    """A tensor in memory.

    role: "input" (given by the caller), "kernel" (allocated by the program before the first kernel that writes it),
    "extern" (allocated by an extern call), "view" (type is a strided window on `base`, a buffer with its own memory:
    its first element is storage_offset - base's storage_offset elements after the base's first; externs and outputs
    use views, and kernels may load them). `reuse` names a buffer of the same size in bytes whose memory this one takes
    over: dead before the first kernel that writes this one, or (in place) last used by that very kernel, every access
    of it being at the index of this one's single store, in an earlier section or earlier at the same point. A reused
    buffer has no `Free` of its own. A kernel buffer that no kernel writes has no elements (or undefined ones): it is
    allocated before its first use, at the latest when it is returned.
    """

    name: str
    type: TensorType
    role: BufferRole
    base: str | None = None
    reuse: str | None = None


class Decision(msgspec.Struct, frozen=True):
    """One fusion decision or refusal, with its reason."""

    action: Literal["fused", "refused", "inlined", "materialised", "reused"]
    subjects: tuple[str, ...]
    reason: str
    bytes_saved: Dim = 0


class LoopGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One direction. Outputs are buffer names or literals, a size being an integer.

    `symbols`: those of the inputs that are no buffers but integers, the values of the size symbols of these names.
    Every other symbol is the size (or the stride) of a dimension of an input, somewhere.
    `updates`: (number of an output, name of an input): the caller would copy the one into the other and do nothing else
    with it, so that it may lie there (`Buffer.reuse`).
    """

    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[Arg, ...]
    steps: tuple[Step, ...]
    decisions: tuple[Decision, ...] = ()
    symbols: tuple[str, ...] = ()
    updates: tuple[tuple[int, str], ...] = ()


class Loop(msgspec.Struct, frozen=True, kw_only=True, tag="loop", tag_field="document"):
    """Same binding and calling convention as the `Prim` it came from."""

    binding: Binding
    forward: LoopGraph
    backward: LoopGraph | None = None
