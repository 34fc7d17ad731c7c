"""Products of matrices that ATen computes, as far as a template can compute them too.

result[b, i, j] = alpha * sum over k of left[b, i, k] * right[b, k, j] + beta * bias[b, i, j]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from codegen.triton.convolutions import Window, operands, window_of
from stagewire.graph import Ref
from stagewire.loop import AxisAtom, Extern, Index, Term
from stagewire.types import TensorType

Types = Mapping[str, TensorType]

DTYPES = frozenset(("float32", "float16", "bfloat16"))
"""Of both operands and the result; sums are in float32."""

MOST_BATCHES = 65535
"""The greatest second number that a program may have."""

CONVOLUTION = "aten.convolution.default"

BATCH, ROW, COLUMN, DEPTH = "batch of the product", "row of the product", "column of the product", "depth"
"""Names of the axes of a product: no axis of a document is called so."""


Steps = tuple[int, int, int]


@dataclass(frozen=True)
class Product:
    """Names of buffers, and the sizes. `batch` is 1 for a product of two matrices.

    steps: how far elements of the result lie apart along batch, rows and columns; left_steps: those of `left` along
    batch, rows and depth; right_steps: those of `right` along batch, depth and columns. window: of a convolution whose
    image is `left` and whose weight is `right`; it says where elements of these are.
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
    window: Window | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.left, self.right) if self.bias is None else (self.left, self.right, self.bias)

    @property
    def taps(self) -> int:
        """In how many parts the depth is."""
        return 1 if self.window is None else self.window.count

    def place(self) -> Index:
        """Where an element of the result is."""
        sizes = (self.batch, self.rows, self.columns)
        return at((BATCH, ROW, COLUMN), tuple(step * (size > 1) for step, size in zip(self.steps, sizes, strict=True)))


def product_of(call: Extern, types: Types) -> Product | None:
    """The product that a call computes; None for any other call, for empty ones, and where sizes are symbolic."""
    read = _CALLS.get(call.target)
    given = read(call) if read is not None else None
    if given is None or len(call.results) != 1:
        return None
    left, right, bias, factors = given
    names = (left, right, call.results[0], *([] if bias is None else [bias]))
    if not all(name in types and _is_known(types[name]) for name in names):
        return None
    a, b, made = types[left], types[right], types[call.results[0]]
    if made.dtype not in DTYPES or {a.dtype, b.dtype} != {made.dtype} or len({len(t.shape) for t in (a, b, made)}) != 1:
        return None
    if 0 in (*a.shape, *b.shape, *made.shape) or (bias is not None and types[bias].dtype not in DTYPES):
        return None
    layout = _convolution if call.target == CONVOLUTION else _matrices
    alpha, beta = factors
    product = Product(left, right, call.results[0], 1, 1, 1, 1, (0, 0, 1), bias=bias, alpha=alpha, beta=beta)
    return layout(call, product, types)


def _matrices(call: Extern, product: Product, types: Types) -> Product | None:
    a, made = types[product.left], types[product.result]
    rank = len(made.shape)
    if made.stride[-1] != 1 or (product.bias is not None and len(types[product.bias].shape) > rank):
        return None
    batch, step = (made.shape[0], made.stride[0]) if rank == 3 else (1, 0)
    if batch > MOST_BATCHES:  # type: ignore[operator]
        return None
    rows, columns = made.shape[-2:]
    sizes: Any = {"batch": batch, "rows": rows, "columns": columns, "depth": a.shape[-1]}
    left, right = (_steps(types[name]) for name in (product.left, product.right))
    return replace(product, **sizes, steps=(step, *made.stride[-2:]), left_steps=left, right_steps=right)


def _steps(type_: TensorType) -> Steps:
    """Those of a matrix, or of a batch of them; 0 along what there is one of."""
    steps: Any = [step if size > 1 else 0 for size, step in zip(type_.shape, type_.stride, strict=True)]
    return tuple([0] * (3 - len(steps)) + steps)  # type: ignore[return-value]


def _convolution(call: Extern, product: Product, types: Types) -> Product | None:
    image, weight, made = types[product.left], types[product.right], types[product.result]
    window = window_of(call, image, weight, made)
    if window is None:
        return None
    number, channels, height, width = made.shape
    sizes: Any = {"rows": number * height * width, "columns": channels, "depth": window.count * image.shape[1]}
    if window.is_point:
        left: Steps = (0, window.image[3], window.image[1])
        right: Steps = (0, window.weight[1], window.weight[0])
        return replace(product, **sizes, steps=(0, channels, 1), left_steps=left, right_steps=right)  # type: ignore
    return replace(product, **sizes, steps=(0, channels, 1), window=window)  # type: ignore[arg-type]


def _is_known(type_: TensorType) -> bool:
    return all(isinstance(n, int) for n in (*type_.shape, *type_.stride, type_.storage_offset))


_Read = tuple[str, str, str | None, tuple[float, float]] | None


def _plain(call: Extern) -> _Read:
    match call:
        case Extern(args=(Ref(left), Ref(right)), kwargs=kwargs) if not kwargs:
            return left, right, None, (1.0, 1.0)
    return None


def _with_bias(call: Extern) -> _Read:
    match call:
        case Extern(args=(Ref(bias), Ref(left), Ref(right)), kwargs=kwargs) if kwargs.keys() <= {"alpha", "beta"}:
            factors = kwargs.get("alpha", 1), kwargs.get("beta", 1)
            if not all(isinstance(factor, int | float) for factor in factors):
                return None
            alpha, beta = (float(factor) for factor in factors)  # type: ignore[arg-type]
            return left, right, bias if beta != 0 else None, (alpha, beta)
    return None


def _of_images(call: Extern) -> _Read:
    found = operands(call)
    return None if found is None else (*found, (1.0, 1.0))


_CALLS: dict[str, Callable[[Extern], Any]] = {
    CONVOLUTION: _of_images,
    "aten.mm.default": _plain,
    "aten.bmm.default": _plain,
    "aten.addmm.default": _with_bias,
    "aten.baddbmm.default": _with_bias,
}


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
