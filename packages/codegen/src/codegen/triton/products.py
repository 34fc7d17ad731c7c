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


@dataclass(frozen=True)
class Product:
    """Names of buffers, and the sizes. `batch` is 1 for a product of two matrices.

    steps: how far elements of the result lie apart along batch, rows and columns. window: of a convolution, whose image
    is `left` and whose weight is `right`.
    """

    left: str
    right: str
    result: str
    batch: int
    rows: int
    columns: int
    depth: int
    steps: tuple[int, int, int]
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
        terms = zip((BATCH, ROW, COLUMN), (self.batch, self.rows, self.columns), self.steps, strict=True)
        return Index(0, tuple(Term(step, AxisAtom(axis)) for axis, size, step in terms if size > 1))


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
    return layout(call, Product(left, right, call.results[0], 1, 1, 1, 1, (0, 0, 1), bias, *factors), types)


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
    return replace(product, **sizes, steps=(step, *made.stride[-2:]))  # type: ignore[arg-type]


def _convolution(call: Extern, product: Product, types: Types) -> Product | None:
    image, weight, made = types[product.left], types[product.right], types[product.result]
    window = window_of(call, image, weight, made)
    if window is None:
        return None
    number, channels, height, width = made.shape
    sizes: Any = {"rows": number * height * width, "columns": channels, "depth": window.count * image.shape[1]}
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


def place_in(type_: TensorType, axes: tuple[str, ...]) -> Index:
    """Where the element of a tensor is that broadcasts to a point of `axes`; the last is that of its last dimension."""
    terms = [
        Term(step, AxisAtom(axis))
        for axis, size, step in zip(axes[::-1], type_.shape[::-1], type_.stride[::-1], strict=False)
        if size != 1 and step != 0
    ]
    return Index(0, tuple(terms[::-1]))
