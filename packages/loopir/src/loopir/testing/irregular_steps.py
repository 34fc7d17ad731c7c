"""Steps that add irregular prims: windows, scans, scatters, random numbers, bits; and calls of libraries."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from loopir.numpy_ops import TABLE
from loopir.testing import steps
from loopir.testing.externs import windows
from loopir.testing.graph_builder import FLOATS, LARGEST, Builder
from loopir.testing.steps import STEPS, Step
from stagewire.graph import Arg, DTypeArg, List, Ref
from stagewire.loop_ops import CHECKS, PREDICATES, arity
from stagewire.types import DType, TensorType

APART = {"where", "philox", *CHECKS}
OPS = tuple(op for op in sorted(TABLE) if op not in APART and "bitwise" not in op and "shift" not in op)
"""What floats are computed by, one point at a time."""


def elementwise(b: Builder) -> None:
    """Any op on floats."""
    x = b.pick(floating=True)
    op = b.draw(st.sampled_from(OPS))
    operands = [Ref(x), *(Ref(b.like(x)) for _ in range(arity(op) - 1))]
    dtype = "bool" if op in PREDICATES else b.types[x].dtype
    b.call(op, tuple(operands), ((dtype, b.types[x].shape),))


def variance(b: Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape, dtype = b.types[x].shape, b.types[x].dtype
    dims = b.draw(st.sets(st.integers(0, len(shape) - 1)))
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    if dims and math.prod(shape) and not b.hostile:
        arguments = Ref(x), List(tuple(sorted(dims))), b.draw(st.integers(0, 2))
        b.call("var_mean", arguments, ((dtype, kept), (dtype, kept)))


def fold(b: Builder) -> None:
    """Reductions that `steps.reduce` has none of: of everything, of booleans, of factors."""
    x = b.pick(floating=True, rank=1)
    shape, dtype = b.types[x].shape, b.types[x].dtype
    kind = b.draw(st.sampled_from(("all", "any", "prod", "argmax", "argmin")))
    if kind in ("any", "all"):
        condition = b.add("gt", (Ref(x), b.draw(st.integers(-2, 2))), "bool", shape)
        b.add(kind, (Ref(condition), List(())), "bool", ())
    elif kind == "prod":
        dim = b.draw(st.integers(0, len(shape) - 1))
        if b.bounds[x] ** shape[dim] <= LARGEST:
            kept = (*shape[:dim], *shape[dim + 1 :])
            b.add(kind, (Ref(x), List((dim,))), dtype, kept, b.bounds[x] ** shape[dim])
    elif math.prod(shape):
        b.add(kind, (Ref(x), None), "int64", (), LARGEST)


def scan(b: Builder) -> None:
    x = b.pick(rank=1)
    type = b.types[x]
    dim = b.draw(st.integers(0, len(type.shape) - 1))
    if type.dtype not in (*FLOATS, "bool", "int64") or not math.prod(type.shape):
        return
    if type.dtype == "bool" or b.draw(st.booleans()):
        results = (type.dtype, type.shape), ("int64", type.shape)
        values, places = b.call(b.draw(st.sampled_from(("cummax", "cummin"))), (Ref(x), dim), results)
        b.types[values], b.bounds[values] = type, b.bounds[x]
        b.types[places], b.bounds[places] = b.leaves[places], LARGEST
        b.types[values] = b.leaves.pop(values)
        b.leaves.pop(places)
    elif type.dtype != "int64" and b.draw(st.integers(0, 3)) == 0:
        b.call("logcumsumexp", (Ref(x), dim), ((type.dtype, type.shape),))
    elif b.draw(st.booleans()) or b.bounds[x] ** type.shape[dim] > LARGEST:
        b.add("cumsum", (Ref(x), dim), type.dtype, type.shape, b.bounds[x] * type.shape[dim])
    else:
        b.add("cumprod", (Ref(x), dim), type.dtype, type.shape, b.bounds[x] ** type.shape[dim])


def scatter(b: Builder) -> None:
    """Sums at any indices; numbers, or one row, where elements are set, so that it does not matter who comes last."""
    x = b.pick(floating=True)
    type = b.types[x]
    if not math.prod(type.shape):
        return
    dim = b.draw(st.integers(0, len(type.shape) - 1)) if type.shape else 0
    shape = tuple(b.draw(st.integers(1, 3)) if d == dim else n for d, n in enumerate(type.shape))
    adds, number = b.draw(st.booleans()), b.draw(st.booleans())
    if not adds and not number:
        shape = tuple(1 if d == dim else n for d, n in enumerate(shape))
    where = b.indices(shape, type.shape[dim] if type.shape else 1)
    source: Arg = Ref(b.input(type.dtype, shape)) if adds or not number else 2.0
    bound = b.bounds[x] + 3 * math.prod(shape) if adds else b.bounds[x] + 3
    b.add("scatter_add" if adds else "scatter", (Ref(x), dim, Ref(where), source), type.dtype, type.shape, bound)


def put(b: Builder) -> None:
    """A number at any indices."""
    x = b.pick(floating=True, rank=1)
    type = b.types[x]
    if math.prod(type.shape):
        where = b.indices((b.draw(st.integers(1, 3)),), type.shape[0], wrap=True)
        shape = (*b.types[where].shape, *type.shape[1:])
        value = b.add("full", (List(shape), 2.0, DTypeArg(type.dtype)), type.dtype, shape)
        arguments = Ref(x), List((Ref(where),)), Ref(value), False, True
        b.add("index_put", arguments, type.dtype, type.shape, b.bounds[x] + 2)


def max_pool(b: Builder) -> None:
    """And its gradient, where the device has one in loops."""
    rank = b.draw(st.sampled_from((2, 2, 3)))
    x = b.pick(floating=True, rank=rank + 1)
    type, lead = b.types[x], len(b.types[x].shape) - rank
    if lead > 2 or not math.prod(type.shape):
        return
    numbers = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)
    window, stride, dilation = b.draw(numbers), b.draw(numbers), b.draw(numbers)
    if b.draw(st.booleans()):
        dilation = [1] * rank
    padding = [b.draw(st.integers(0, size // 2)) for size in window]
    ceil = b.draw(st.booleans())
    whole = zip(type.shape[lead:], window, stride, padding, dilation, strict=True)
    pooled = tuple(windows(*side, ceil) for side in whole)
    if min(pooled) < 1:
        return
    shape = (*type.shape[:lead], *pooled)
    sizes = tuple(List(tuple(size)) for size in (window, stride, padding, dilation))
    y, at = b.call(f"max_pool{rank}d", (Ref(x), *sizes, ceil), ((type.dtype, shape), ("int64", shape)))
    b.types[y], b.bounds[y] = b.leaves.pop(y), b.bounds[x]
    if b.draw(st.booleans()):
        grad = b.input(type.dtype, shape)
        bound = 3 * math.prod(window)
        b.add(f"max_pool{rank}d_backward", (Ref(grad), Ref(x), *sizes, ceil, Ref(at)), type.dtype, type.shape, bound)


def random_numbers(b: Builder) -> None:
    """Whether random numbers are above a half; of a seed that is given, or of the device's state."""
    shape = tuple(b.draw(st.lists(st.sampled_from(b.sizes), max_size=2)))
    if b.draw(st.booleans()):
        seed, offset = b.call("philox_state", (4, b.device), (("int64", ()), ("int64", ())))
    else:
        seed, offset = b.indices((), 1), b.indices((), 1)
    arguments = Ref(seed), Ref(offset), List(shape), b.draw(st.sampled_from((4, 32))), b.draw(st.sampled_from((1, 4)))
    (x,) = b.call("philox_uniform", (*arguments, b.device), (("float32", shape),))
    y = b.add("gt", (Ref(x), 0.5), "bool", shape)
    b.add("convert_element_type", (Ref(y), DTypeArg("float32")), "float32", shape, 1)


def bits(b: Builder) -> None:
    """There and back."""
    x = b.pick(floating=True)
    type = b.types[x]
    held: DType = "int64" if type.dtype == "float64" else "int32"
    (y,) = b.call("bitcast", (Ref(x), DTypeArg(held)), ((held, type.shape),))
    b.add("bitcast", (Ref(y), DTypeArg(type.dtype)), type.dtype, type.shape, b.bounds[x])


def as_strided(b: Builder) -> None:
    x = b.pick(floating=True)
    count = math.prod(b.types[x].shape)
    offset = b.draw(st.integers(0, max(count - 1, 0)))
    shape: list[int] = []
    stride: list[int] = []
    last = count - 1 - offset
    for _ in range(b.draw(st.integers(0, 3)) if count else 0):
        stride.append(b.draw(st.integers(0, 3)))
        shape.append(b.draw(st.integers(1, 1 + min(3, last // stride[-1] if stride[-1] else 3))))
        last -= (shape[-1] - 1) * stride[-1]
    if count:
        sizes = List(tuple(shape)), List(tuple(stride))
        b.add("as_strided", (Ref(x), *sizes, offset), b.types[x].dtype, tuple(shape), b.bounds[x])


def count_up(b: Builder) -> None:
    """Numbers of any dtype, which halves round; nan and inf everywhere."""
    size = b.draw(st.sampled_from(b.sizes))
    dtype = b.draw(st.sampled_from(("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8")))
    if b.draw(st.integers(0, 3)) == 0 and dtype in FLOATS:
        b.call("iota", (size, 0.25, 0.5, DTypeArg(dtype)), ((dtype, (size,)),))
    else:
        start, step = b.draw(st.sampled_from((0, 1, -5, 1001, 2049, 3001))), b.draw(st.integers(-7, 7))
        b.call("iota", (size, start, step, DTypeArg(dtype)), ((dtype, (size,)),))


def weighted(b: Builder) -> None:
    """A call of a library with an argument by name, which is a size."""
    x = b.pick(floating=True)
    y, size = b.like(x), b.draw(st.sampled_from(b.sizes))
    type, bound = b.types[x], b.bounds[x] + size * b.bounds[y]
    b.add("aten.add.Tensor", (Ref(x), Ref(y)), type.dtype, type.shape, bound, alpha=size)


def halves(b: Builder) -> None:
    """A product of matrices in half precision, which holds its numbers exactly."""
    x = b.pick(floating=True, rank=2)
    shape = b.types[x].shape
    if len(shape) > 3 or b.hostile or not math.prod(shape):
        return
    small = b.add("remainder", (Ref(x), 3), b.types[x].dtype, shape, 2)
    left = b.add("convert_element_type", (Ref(small), DTypeArg("bfloat16")), "bfloat16", shape, 2)
    columns = b.draw(st.sampled_from(b.sizes))
    right = _half(b, (*shape[:-2], shape[-1], columns))
    result = (*shape[:-1], columns)
    if len(shape) == 2 and b.draw(st.booleans()):
        biases = st.sampled_from(((columns,), (1, columns), (shape[0], columns), (shape[0], 1)))
        bias = b.input("bfloat16", b.draw(biases))
        y = b.add("aten.addmm.default", (Ref(bias), Ref(left), Ref(right)), "bfloat16", result, 6 * shape[-1] + 3)
    else:
        target = "aten.mm.default" if len(shape) == 2 else "aten.bmm.default"
        y = b.add(target, (Ref(left), Ref(right)), "bfloat16", result, 6 * shape[-1])
    b.add("convert_element_type", (Ref(y), DTypeArg("float32")), "float32", result, 6 * shape[-1] + 3)


def _half(b: Builder, shape: tuple[int, ...]) -> str:
    """An input, a part of one, or one turned."""
    kind = b.draw(st.sampled_from(("whole", "part", "turned")))
    if kind == "part":
        more = [b.draw(st.integers(0, 2)) for _ in shape]
        low = tuple([b.draw(st.integers(0, n)) for n in more])
        whole = b.input("bfloat16", tuple([n + k for n, k in zip(shape, more, strict=True)]))
        stop = tuple([n + start for n, start in zip(shape, low, strict=True)])
        return b.add("slice", (Ref(whole), List(low), List(stop), List((1,) * len(shape))), "bfloat16", shape)
    if kind == "turned":
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return b.add(
            "permute", (Ref(b.input("bfloat16", tuple([shape[d] for d in order]))), List(order)), "bfloat16", shape
        )
    return b.input("bfloat16", shape)


def convolution(b: Builder) -> None:
    x = b.pick(dtype="float32", rank=4)
    type = b.types[x]
    if len(type.shape) != 4 or not math.prod(type.shape) or math.prod(type.shape) > 2000 or b.bounds[x] > 1000:
        return
    count, channels, *sides = type.shape
    groups = b.draw(st.sampled_from((1, channels)))
    window, pad, step = b.draw(st.integers(1, 2)), b.draw(st.integers(0, 1)), b.draw(st.integers(1, 2))
    pooled = tuple((side + 2 * pad - window) // step + 1 for side in sides)
    if min(pooled) < 1:
        return
    made = groups * b.draw(st.integers(1, 3))
    weight = b.input("float32", (made, channels // groups, window, window))
    sizes = (*(List((n, n)) for n in (step, pad, 1)), False, List((0, 0)), groups)
    shape = (count, made, *pooled)
    bound = 3 * b.bounds[x] * channels * window**2
    b.add("aten.convolution.default", (Ref(x), Ref(weight), None, *sizes), "float32", shape, bound)


def direct_conv(b: Builder) -> None:
    """A convolution of images whose channels are last: of each of them, or of all together."""
    x = b.pick(floating=True, rank=3)
    type = b.types[x]
    if not math.prod(type.shape) or math.prod(type.shape) > 2000 or b.bounds[x] > 1000:
        return
    count, *sides, channels = type.shape
    numbers = st.lists(st.integers(1, 3), min_size=len(sides), max_size=len(sides))
    window, stride, dilation = b.draw(numbers), b.draw(numbers), b.draw(numbers)
    sizes = tuple(windows(*side, False) for side in zip(sides, window, stride, [0] * len(sides), dilation, strict=True))
    if min(sizes) < 1:
        return
    lead = b.draw(st.sampled_from(((), (channels,))))
    made = b.draw(st.integers(1, 3)) if lead else channels
    weight = b.input(type.dtype, (*window, *lead, made))
    bound = 3 * b.bounds[x] * math.prod(window) * math.prod(lead)
    arguments = Ref(x), Ref(weight), List(tuple(stride)), List(tuple(dilation))
    b.add("direct_conv", arguments, type.dtype, (count, *sizes, made), bound)


def library_pool(b: Builder) -> None:
    """And its gradient."""
    x = b.pick(dtype="float32", rank=4)
    type = b.types[x]
    if len(type.shape) == 4 and min(type.shape[2:]) > 1:
        shape = (*type.shape[:2], *(side // 2 for side in type.shape[2:]))
        two, none, one = (List((n, n)) for n in (2, 0, 1))
        results = ("float32", shape), ("int64", shape)
        arguments = Ref(x), two, two, none, one, False
        y, at = b.call("aten.max_pool2d_with_indices.default", arguments, results)
        b.types[y], b.bounds[y] = b.leaves.pop(y), b.bounds[x]
        if b.draw(st.booleans()):
            grad = Ref(b.input("float32", shape))
            target = "aten.max_pool2d_with_indices_backward.default"
            b.add(target, (grad, *arguments, Ref(at)), "float32", type.shape, 3)


def update(b: Builder) -> None:
    """A new value of an input, in its layout."""
    names = [value.name for value in b.inputs if _is_updated(value.type)]  # type: ignore[arg-type]
    if not names:
        return
    x = b.draw(st.sampled_from(names))
    y, op = b.like(x), b.draw(st.sampled_from(("add", "mul")))
    b.add(op, (Ref(x), Ref(y)), b.types[x].dtype, b.types[x].shape, b.bounds[x] * b.bounds[y] + 3)
    b.lay_out_last(b.types[x].stride)  # type: ignore[arg-type]


def _is_updated(type: TensorType) -> bool:
    return type.dtype in FLOATS and 0 not in type.stride


IRREGULAR: tuple[Step, ...] = (
    elementwise, variance, fold, scan, scatter, put, max_pool, random_numbers, bits, as_strided, count_up, halves,
    convolution, direct_conv, library_pool, weighted, update,
)  # fmt: skip
FAMILIES: dict[str, tuple[Step, ...]] = {
    "anything": (*STEPS, *IRREGULAR),
    "rows": (steps.reduce, steps.reduce, steps.broadcast, steps.binary, steps.heavy, variance, update),
    "places": (
        steps.window, steps.pad, steps.flip, steps.cat, steps.reshape, steps.permute, steps.broadcast, steps.binary,
        steps.choose, steps.gather, steps.index, scatter, put, as_strided, update,
    ),
    "updates": (update, update, steps.gather, steps.index, scatter, put, steps.reduce, steps.broadcast),
    "windows": (
        max_pool, max_pool, convolution, convolution, direct_conv, direct_conv, steps.pad, steps.unary, steps.binary,
        steps.permute,
    ),
    "images": (convolution, convolution, convolution, library_pool, steps.unary, steps.binary, update),
    "products": (halves, halves, halves, steps.permute, steps.unary, steps.binary),
    "calls": (
        halves, halves, scan, weighted, steps.product, steps.permute, steps.window, steps.unary, steps.reduce, update,
    ),
    "records": (elementwise, variance, fold, scan, random_numbers, bits, count_up, scatter, put, steps.cast),
}  # fmt: skip
"""Steps that meet each other more often than they do among all of them."""
