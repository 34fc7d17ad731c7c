"""Steps that add regular prims to a graph: of elements, shapes, indices, reductions."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import strategies as st

from loopir.testing.graph_builder import FLOATS, LARGEST, Builder
from stagewire.graph import Arg, DTypeArg, List, Ref
from stagewire.types import contiguous_stride, numel

Step = Callable[[Builder], None]


def unary(b: Builder) -> None:
    x = b.pick(floating=True)
    op = b.draw(st.sampled_from(("neg", "abs", "sign", "floor", "ceil", "round")))
    b.add(op, (Ref(x),), b.types[x].dtype, b.types[x].shape, b.bounds[x])


def binary(b: Builder) -> None:
    x = b.pick(floating=True)
    y: Arg = b.draw(st.integers(-2, 3)) if b.draw(st.booleans()) else Ref(b.like(x))
    other = b.bounds[y.name] if isinstance(y, Ref) else 3
    op = b.draw(st.sampled_from(("add", "sub", "mul", "maximum", "minimum")))
    bound = b.bounds[x] * other if op == "mul" else b.bounds[x] + other
    b.add(op, (Ref(x), y), b.types[x].dtype, b.types[x].shape, bound)


def heavy(b: Builder) -> None:
    """Arithmetic that is not worth doing twice."""
    x = b.pick(floating=True)
    y = b.add("remainder", (Ref(x), b.draw(st.sampled_from((3, 5, 7)))), b.types[x].dtype, b.types[x].shape, 7)
    b.add("fmod", (Ref(y), 4), b.types[x].dtype, b.types[x].shape, 4)


def choose(b: Builder) -> None:
    x = b.pick(floating=True)
    y = b.like(x)
    condition = b.add(b.draw(st.sampled_from(("lt", "ge", "eq"))), (Ref(x), Ref(y)), "bool", b.types[x].shape)
    b.add("where", (Ref(condition), Ref(x), b.draw(st.sampled_from((Ref(y), 0, 2.0)))), b.types[x].dtype,
          b.types[x].shape, max(b.bounds[x], b.bounds[y]))  # fmt: skip


def cast(b: Builder) -> None:
    x = b.pick()
    dtypes = ("float64", "float32", "bool") + (("bfloat16", "float16") if b.bounds[x] <= 100 else ())
    dtypes += () if b.hostile else ("int64",)
    dtype = b.draw(st.sampled_from(dtypes))
    y = b.add("convert_element_type", (Ref(x), DTypeArg(dtype)), dtype, b.types[x].shape, b.bounds[x])
    if dtype in ("bfloat16", "float16", "int64"):
        b.add("convert_element_type", (Ref(y), DTypeArg("float32")), "float32", b.types[x].shape, b.bounds[x])


def reduce(b: Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape = b.types[x].shape
    dims = b.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    op = b.draw(st.sampled_from(("sum", "sum", "amax", "amin")))
    if op != "sum" and any(shape[d] == 0 for d in dims):
        op = "sum"
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    bound = b.bounds[x] * max(1, math.prod(shape[d] for d in dims)) if op == "sum" else b.bounds[x]
    y = b.add(op, (Ref(x), List(tuple(sorted(dims)))), b.types[x].dtype, kept, bound)
    if b.draw(st.booleans()):  # back to the shape of the operand, as softmax and layer norm do
        places = List(tuple(d for d in range(len(shape)) if d not in dims))
        b.add("broadcast_in_dim", (Ref(y), List(shape), places), b.types[x].dtype, shape, b.bounds[y])


def position(b: Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape = b.types[x].shape
    dim = b.draw(st.integers(0, len(shape) - 1))
    if shape[dim]:
        kept = tuple(n for d, n in enumerate(shape) if d != dim)
        b.add(b.draw(st.sampled_from(("argmax", "argmin"))), (Ref(x), dim), "int64", kept, LARGEST)


def broadcast(b: Builder) -> None:
    x = b.pick()
    shape = b.types[x].shape
    if len(shape) > 3:
        return
    place = b.draw(st.integers(0, len(shape)))
    size = b.draw(st.sampled_from((*b.sizes[:5], b.sizes[-1])))
    whole = tuple(n if n != 1 or b.draw(st.booleans()) else 2 for n in shape)
    result = (*whole[:place], size, *whole[place:])
    places = tuple(d if d < place else d + 1 for d in range(len(shape)))
    b.add("broadcast_in_dim", (Ref(x), List(result), List(places)), b.types[x].dtype, result, b.bounds[x])
    if b.bounds[x] <= LARGEST and b.draw(st.integers(0, 2)) == 0:  # as torch expands it
        stride = contiguous_stride(whole)
        b.lay_out_last((*stride[:place], 0, *stride[place:]))  # type: ignore[arg-type]


def permute(b: Builder) -> None:
    x = b.pick(rank=1)
    dims = tuple(b.draw(st.permutations(range(len(b.types[x].shape)))))
    shape = tuple(b.types[x].shape[d] for d in dims)
    b.add("permute", (Ref(x), List(dims)), b.types[x].dtype, shape, b.bounds[x])


def reshape(b: Builder) -> None:
    x = b.pick()
    count = numel(b.types[x].shape)
    assert isinstance(count, int)
    shape: list[int] = []
    rest = count
    while rest > 1 and len(shape) < 3:
        shape.append(b.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0])))
        rest //= shape[-1]
    shape.append(rest)
    b.add("reshape", (Ref(x), List(tuple(shape))), b.types[x].dtype, tuple(shape), b.bounds[x])


def window(b: Builder) -> None:
    x = b.pick(rank=1)
    bounds = []
    for size in b.types[x].shape:
        start = b.draw(st.integers(0, size))
        bounds.append((start, b.draw(st.integers(start, size)), b.draw(st.integers(1, 2))))
    start, stop, step = (List(t) for t in zip(*bounds, strict=True))
    shape = tuple(len(range(*one)) for one in bounds)
    y = b.add("slice", (Ref(x), start, stop, step), b.types[x].dtype, shape, b.bounds[x])
    if b.draw(st.booleans()):
        z = b.add("neg", (Ref(y),), b.types[x].dtype, shape, b.bounds[x]) if b.types[x].dtype in FLOATS else y
        b.add("slice_scatter", (Ref(x), Ref(z), start, stop, step), b.types[x].dtype, b.types[x].shape, b.bounds[x])


def flip(b: Builder) -> None:
    x = b.pick(rank=1)
    dims = b.draw(st.sets(st.integers(0, len(b.types[x].shape) - 1)))
    b.add("flip", (Ref(x), List(tuple(sorted(dims)))), b.types[x].dtype, b.types[x].shape, b.bounds[x])


def cat(b: Builder) -> None:
    x = b.pick(rank=1)
    pieces = [x, b.like(x), *([b.like(x)] if b.draw(st.booleans()) else [])]
    shape = b.types[x].shape
    dim = b.draw(st.integers(0, len(shape) - 1))
    result = tuple(n * len(pieces) if d == dim else n for d, n in enumerate(shape))
    b.add("cat", (List(tuple(Ref(p) for p in pieces)), dim), b.types[x].dtype, result, max(b.bounds[p] for p in pieces))


def pad(b: Builder) -> None:
    x = b.pick(floating=True, rank=1)
    edges = [(b.draw(st.integers(0, 2)), b.draw(st.integers(0, 2))) for _ in b.types[x].shape]
    low, high = zip(*edges, strict=True)
    shape = tuple(n + a + z for n, (a, z) in zip(b.types[x].shape, edges, strict=True))
    b.add("pad", (Ref(x), List(low), List(high), b.draw(st.sampled_from((0.0, 2.0)))), b.types[x].dtype, shape,
          b.bounds[x] + 2)  # fmt: skip


def gather(b: Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape = b.types[x].shape
    dim = b.draw(st.integers(0, len(shape) - 1))
    if not shape[dim]:
        return
    wanted = tuple(b.draw(st.integers(1, 3)) if d == dim else n for d, n in enumerate(shape))
    where = b.indices(wanted, shape[dim])
    b.add("gather", (Ref(x), dim, Ref(where)), b.types[x].dtype, wanted, b.bounds[x])


def index(b: Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape = b.types[x].shape
    chosen = b.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=2))
    if any(shape[d] == 0 for d in chosen):
        return
    common = tuple(b.draw(st.lists(st.sampled_from((1, 2, 5)), max_size=2)))
    wrap = b.draw(st.booleans())
    indices = tuple(Ref(b.indices(common, shape[d], wrap)) if d in chosen else None for d in range(len(shape)))
    adjacent = max(chosen) - min(chosen) + 1 == len(chosen)
    first = min(chosen) if adjacent else 0
    rest = tuple(n for d, n in enumerate(shape) if d not in chosen)
    result = (*rest[:first], *common, *rest[first:])
    y = b.add("index", (Ref(x), List(indices), wrap), b.types[x].dtype, result, b.bounds[x])
    if b.draw(st.booleans()):
        bound = b.bounds[x] + b.bounds[y] * max(math.prod(result), 1)
        b.add("index_put", (Ref(x), List(indices), Ref(y), True, wrap), b.types[x].dtype, shape, bound)


def create(b: Builder) -> None:
    size = b.draw(st.sampled_from(b.sizes))
    if b.draw(st.booleans()):
        b.add("iota", (size, b.draw(st.integers(-2, 2)), b.draw(st.integers(-2, 2)), DTypeArg("float64")), "float64",
              (size,), 30)  # fmt: skip
    else:
        b.add("full", (List((size, 2)), b.draw(st.integers(-2, 2)), DTypeArg("float64")), "float64", (size, 2))


def product(b: Builder) -> None:
    """An extern: its operand must get exactly the stated layout."""
    x = b.pick(floating=True, rank=2)
    if len(b.types[x].shape) != 2 or b.bounds[x] > 1000:
        return
    shape = b.types[x].shape
    turned = b.add("permute", (Ref(x), List((1, 0))), b.types[x].dtype, shape[::-1], b.bounds[x])
    bound = b.bounds[x] ** 2 * max(shape[1], 1)
    b.add("aten.mm.default", (Ref(x), Ref(turned)), b.types[x].dtype, (shape[0], shape[0]), bound)


def clone(b: Builder) -> None:
    x = b.pick()
    b.add("clone", (Ref(x),), b.types[x].dtype, b.types[x].shape, b.bounds[x])


STEPS: tuple[Step, ...] = (
    unary, binary, binary, heavy, choose, cast, reduce, reduce, position, broadcast, permute, reshape,
    window, flip, cat, pad, gather, index, create, product, clone,
)  # fmt: skip
