"""Products of matrices that ATen computes, as far as a template can compute them too, and the tiles to try.

result[b, i, j] = alpha * sum over k of left[b, i, k] * right[b, k, j] + beta * bias[b, i, j]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from codegen.triton import tuning
from codegen.triton.plan import MOST_SECOND_PROGRAMS, power_of_two
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop import AxisAtom, Extern, Index, Term
from stagewire.program import KernelInfo, Launch
from stagewire.types import ITEM_SIZE, TensorType

Types = Mapping[str, TensorType]

DTYPES = frozenset(("float32", "float16", "bfloat16"))
"""Of both operands and the result; sums are in float32."""

Make = Callable[[str, KernelInfo, Types, tuple[Dim, ...]], Launch]
"""Takes a function, the info of a kernel, the types of its buffers and its sizes, and gives its launch."""

BATCH, ROW, COLUMN, DEPTH = "batch of the product", "row of the product", "column of the product", "depth"
"""Names of the axes of a product: no axis of a document is called so."""


Steps = tuple[int, int, int]


@dataclass(frozen=True)
class Product:
    """Names of buffers, and the sizes. `batch` is 1 for a product of two matrices.

    steps: how far elements of the result lie apart along batch, rows and columns; left_steps: those of `left` along
    batch, rows and depth; right_steps: those of `right` along batch, depth and columns.
    """

    left: str
    right: str
    result: str
    batch: int
    rows: int
    columns: int
    depth: int
    steps: Steps
    left_steps: Steps = (0, 0, 0)
    right_steps: Steps = (0, 0, 0)
    bias: str | None = None
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def operands(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.left, self.right) if self.bias is None else (self.left, self.right, self.bias)

    @property
    def sizes(self) -> Steps:
        """Batches, rows and columns."""
        return self.batch, self.rows, self.columns

    def place(self) -> Index:
        """Where an element of the result is."""
        moving = zip(self.steps, self.sizes, strict=True)
        return at((BATCH, ROW, COLUMN), tuple(step * (size > 1) for step, size in moving))


def product_of(call: Extern, types: Types) -> Product | None:
    """The product that a call computes; None for any other call, for empty ones, and where sizes are symbolic."""
    given = _read(call)
    if given is None:
        return None
    left, right, bias, factors = given
    names = (left, right, call.results[0], *([] if bias is None else [bias]))
    known = [types[name] for name in names if name in types]
    if len(known) < len(names) or not all(
        isinstance(n, int) for t in known for n in (*t.shape, *t.stride, t.storage_offset)
    ):
        return None
    a, b, made = types[left], types[right], types[call.results[0]]
    if made.dtype not in DTYPES or {a.dtype, b.dtype} != {made.dtype} or len({len(t.shape) for t in (a, b, made)}) != 1:
        return None
    if 0 in (*a.shape, *b.shape, *made.shape) or (bias is not None and types[bias].dtype not in DTYPES):
        return None
    rank = len(made.shape)
    if made.stride[-1] != 1 or (bias is not None and len(types[bias].shape) > rank):
        return None
    batch, step = (made.shape[0], made.stride[0]) if rank == 3 else (1, 0)
    if batch > MOST_SECOND_PROGRAMS:  # type: ignore[operator]
        return None
    sizes: Any = batch, *made.shape[-2:], a.shape[-1]
    steps: Any = (step, *made.stride[-2:]), _steps(a), _steps(b)
    return Product(left, right, call.results[0], *sizes, *steps, bias, *factors)


def _steps(type_: TensorType) -> Steps:
    """Those of a matrix, or of a batch of them; 0 along what there is one of."""
    steps: Any = [step if size > 1 else 0 for size, step in zip(type_.shape, type_.stride, strict=True)]
    return tuple([0] * (3 - len(steps)) + steps)  # type: ignore[return-value]


BIASES = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1}
"""How many tensors stand before the operands of a product."""


def _read(call: Extern) -> tuple[str, str, str | None, tuple[float, ...]] | None:
    """The operands, the bias and its factors (alpha, beta); None for another call."""
    count = BIASES.get(call.target)
    names = [arg.name for arg in call.args if isinstance(arg, Ref)]
    factors = [call.kwargs.get(name, 1.0) for name in ("alpha", "beta")]
    if count is None or not call.kwargs.keys() <= ({"alpha", "beta"} if count else set()):
        return None
    if len(call.args) != count + 2 or len(names) != len(call.args) or len(call.results) != 1:
        return None
    if not all(isinstance(factor, int | float) for factor in factors):
        return None
    *bias, left, right = names
    return left, right, bias[0] if bias and factors[1] != 0 else None, tuple(map(float, factors))  # type: ignore[arg-type]


def at(axes: tuple[str, ...], steps: tuple[int, ...]) -> Index:
    """An index that grows by so many elements along each axis."""
    return Index(0, tuple(Term(step, AxisAtom(axis)) for axis, step in zip(axes, steps, strict=True) if step != 0))


def place_in(type_: TensorType, axes: tuple[str, ...]) -> Index:
    """Where the element of a tensor is that broadcasts to a point of `axes`; the last is that of its last dimension."""
    terms = [
        Term(step, AxisAtom(axis))
        for axis, size, step in zip(axes[::-1], type_.shape[::-1], type_.stride[::-1], strict=False)
        if size != 1 and step != 0
    ]
    return Index(0, tuple(terms[::-1]))


@dataclass(frozen=True)
class Tile:
    """rows, columns: of the result, by one program; depth: of one step of its loop; group: tiles of rows that run side
    by side, so that they share columns in the cache; stages: steps whose operands are on their way at the same time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8

    def shared(self, item: int) -> int:
        """Bytes of shared memory that its operands take."""
        return self.stages * self.depth * (self.rows + self.columns) * item

    def cost(self, product: Product) -> float:
        """A rough measure of time: rounds of programs over all processors, by how much each moves and computes."""
        count = product.batch * -(-product.rows // self.rows) * -(-product.columns // self.columns)
        steps = -(-product.depth // self.depth) * self.depth
        moved = (self.rows + self.columns) * steps
        computed = self.rows * self.columns * steps / 64
        rounds = count / tuning.SM_90.multiprocessors
        return max(rounds, 1.0, round(rounds + 0.49) * 0.85) * (moved + computed)


HALF = (
    Tile(128, 256, 64, 8, 4), Tile(128, 256, 64, 8, 3), Tile(256, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 4, 3), Tile(128, 128, 32, 4, 4), Tile(128, 64, 64, 4, 3), Tile(64, 128, 64, 4, 3),
    Tile(64, 64, 64, 4, 3), Tile(64, 64, 128, 4, 3), Tile(64, 32, 128, 4, 4), Tile(32, 64, 128, 4, 4),
    Tile(32, 32, 128, 4, 4), Tile(32, 128, 64, 4, 4), Tile(16, 64, 128, 4, 4), Tile(16, 32, 256, 4, 3),
    Tile(16, 128, 64, 4, 5), Tile(64, 16, 128, 4, 4), Tile(16, 16, 64, 1, 4),
)  # fmt: skip
"""For operands of 16 bits. Three stages leave room for two programs on a multiprocessor, so that one computes while the
other stores: on an H200 that is worth more than a fourth stage."""

FULL = (
    Tile(128, 128, 32, 8, 3), Tile(128, 64, 32, 4, 3), Tile(64, 128, 32, 4, 3), Tile(64, 64, 32, 4, 4),
    Tile(32, 64, 32, 4, 4), Tile(64, 32, 32, 4, 4), Tile(16, 64, 64, 4, 3), Tile(32, 32, 64, 4, 3),
    Tile(16, 32, 128, 4, 3), Tile(16, 16, 64, 1, 3),
)  # fmt: skip
"""For operands in float32. A tile of 128 x 256 is hardly better than these, and takes ten seconds to compile."""


def tiles_for(product: Product, dtype: str) -> tuple[Tile, ...]:
    """The tiles to be timed, the one of the least estimated cost first."""
    t = tuning.SM_90
    rows, columns = (max(t.least_product_side, power_of_two(size)) for size in (product.rows, product.columns))
    fitting = [
        tile
        for tile in (FULL if dtype == "float32" else HALF)
        if tile.rows <= rows and tile.columns <= columns and tile.shared(ITEM_SIZE[dtype]) <= t.shared_memory
    ]
    return tuple(sorted(fitting, key=lambda tile: tile.cost(product))[: t.timed_tiles])
