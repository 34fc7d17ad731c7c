"""What a Prim graph means, in numpy: the other side of `interpret(stage(d)) == interpret(d)`. Needs numpy.

Each prim is a function of whole arrays, written without looking at the loops that loopir makes of it. bfloat16
tensors are float32 arrays with bfloat16 values, as in `loopir.interpret`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loopir import numpy_ops
from loopir.errors import NotInterpretable
from loopir.interpret import decode, encode
from loopir.lowering import LOWERINGS
from loopir.numpy_ops import Array, rounded, uniform
from loopir.testing.externs import EXTERNS, accumulated, max_pool, max_pool_backward, running
from stagewire.graph import Arg, DTypeArg, Graph, List, Node, NonFinite, Ref, Tuple
from stagewire.loop_ops import PREDICATES
from stagewire.types import TensorType

Meaning = Callable[..., Any]
Externs = Mapping[str, Meaning]


def prim_meaning(graph: Graph, inputs: Sequence[Array], externs: Externs | None = None) -> tuple[object, ...]:
    """The graph's outputs."""
    values: dict[str, object] = dict(zip((value.name for value in graph.inputs), inputs, strict=True))
    types = {value.name: value.type for value in graph.inputs}
    for node in graph.nodes:
        types.update({value.name: value.type for value in node.results})
        found = _run(node, values, types, externs or {})
        for value, array in zip(node.results, found, strict=True):
            values[value.name] = array
    return tuple(values[arg.name] if isinstance(arg, Ref) else arg for arg in graph.outputs)


def _run(node: Node, values: Mapping[str, object], types: Mapping[str, object], externs: Externs) -> tuple[object, ...]:
    args = [_value(arg, values) for arg in node.args]
    kwargs = {key: _value(arg, values) for key, arg in node.kwargs.items()}
    name = node.target.removeprefix("prims.")
    if name == node.target:
        if name not in externs:
            raise NotInterpretable(f"no function for the extern {name}")
        found = externs[name](*args, **kwargs)
    elif name in PRIMS:
        names = LOWERINGS[name][0]
        found = PRIMS[name](node.results[0].type, **dict(zip(names, args, strict=False)), **kwargs)
    else:
        found = _elementwise(name, node, args, types)
    results = found if isinstance(found, tuple) else (found,)
    return tuple(
        rounded(np.asarray(r), v.type.dtype) if isinstance(v.type, TensorType) else r
        for r, v in zip(results, node.results, strict=True)
    )


def _value(arg: Arg, values: Mapping[str, object]) -> object:
    match arg:
        case Ref(name):
            return values[name]
        case List(items) | Tuple(items):
            return [_value(item, values) for item in items]
        case NonFinite(text):
            return float(text)
    return arg


def _elementwise(name: str, node: Node, args: list[object], types: Mapping[str, object]) -> Array:
    result = node.results[0].type
    assert isinstance(result, TensorType)
    skip = 1 if name == "where" else 0
    kinds = [types[arg.name] for arg in node.args[skip:] if isinstance(arg, Ref)]
    dtype = kinds[0].dtype if kinds and isinstance(kinds[0], TensorType) else result.dtype
    operands = [a if isinstance(a, np.ndarray) else rounded(np.array(a), dtype) for a in args[skip:]]
    if skip:
        operands.insert(0, np.asarray(args[0], bool))
    found = numpy_ops.apply(name, operands, dtype)
    return np.broadcast_to(found if name in PREDICATES else rounded(found, dtype), result.shape)


def _axes(dims: Sequence[int], x: Array, type: TensorType) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if not dims and not type.shape else tuple(d % max(x.ndim, 1) for d in dims)


def _wide(x: Array) -> Array:
    """Sums and products of floats are made in float64: closer to the truth than any order of adding."""
    return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x


def _reduction(function: Meaning) -> Meaning:
    def run(type: TensorType, x: Array, dims: Sequence[int]) -> Array:
        return function(_wide(x), axis=_axes(dims, x, type)) if x.ndim else x

    return run


def _arg(function: Meaning) -> Meaning:
    def run(type: TensorType, x: Array, dim: int | None = None) -> Array:
        return np.asarray(function(x, axis=dim)).reshape(type.shape)

    return run


def _var_mean(type: TensorType, x: Array, dims: Sequence[int], correction: int = 1) -> tuple[Array, Array]:
    axes = _axes(dims, x, type)
    count = int(np.prod([x.shape[d] for d in axes]))
    with np.errstate(all="ignore"):
        mean = np.sum(_wide(x), axis=axes, keepdims=True) / count
        squares = np.sum((_wide(x) - mean) ** 2, axis=axes)
        return squares / max(count - correction, 0), mean.reshape(squares.shape)


def _broadcast(type: TensorType, x: Array, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Array:
    sizes = [1] * len(shape)
    for d, place in enumerate(broadcast_dimensions):
        sizes[place] = x.shape[d]
    return np.broadcast_to(x.reshape(sizes), tuple(shape))


def _slices(start: Sequence[int], stop: Sequence[int], step: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(*bounds) for bounds in zip(start, stop, step, strict=True))


def _pad(type: TensorType, x: Array, low: Sequence[int], high: Sequence[int], value: float) -> Array:
    fill = rounded(np.array(value), type.dtype)
    result = np.full(type.shape, fill, fill.dtype)
    result[tuple(slice(a, a + n) for a, n in zip(low, x.shape, strict=True))] = x
    return result


def _as_strided(type: TensorType, x: Array, size: Sequence[int], stride: Sequence[int], offset: int) -> Array:
    place = np.full(tuple(size), offset, np.int64)
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        place += (np.arange(n) * step).reshape([-1 if d == e else 1 for e in range(len(size))])
    if place.size and place.min() < 0:
        raise IndexError(f"element {place.min()} of a tensor")
    return x.reshape(-1)[place]


def _slice_scatter(
    type: TensorType, x: Array, src: Array, start: Sequence[int], stop: Sequence[int], step: Sequence[int]
) -> Array:
    result = np.array(x)
    result[_slices(start, stop, step)] = src
    return result


def _cat(type: TensorType, tensors: Sequence[Array], dim: int) -> Array:
    return np.concatenate([t for t in tensors if t.shape != (0,) or len(type.shape) == 1], axis=dim)


def _gather(type: TensorType, x: Array, dim: int, index: Array) -> Array:
    return x.reshape(())[()] * np.ones(type.shape, x.dtype) if not x.ndim else x[_along(x, dim, index)]


def _along(x: Array, dim: int, index: Array) -> tuple[Array, ...]:
    """The open grid of `index`, with `index` itself along `dim`."""
    grid = list(np.indices(index.shape, sparse=True))
    grid[dim % x.ndim] = index
    return tuple(grid)


def _scatter(add: bool) -> Meaning:
    def run(type: TensorType, x: Array, dim: int, index: Array, src: Array | float) -> Array:
        result = np.array(x)
        place = _along(x, dim, index) if x.ndim else ()
        value = np.asarray(src)
        value = value[tuple(slice(n) for n in index.shape)] if value.ndim else value
        if add:
            np.add.at(result, place, value)
        else:
            result[place] = value
        return result

    return run


def _place(x: Array, indices: Sequence[Array | None], wrap: bool) -> tuple[Any, ...]:
    """The subscript; without `wrap`, negative indices are an error."""
    if not wrap:
        for i, size in zip(indices, x.shape, strict=False):
            if i is not None:
                numpy_ops.apply("check_index", [i, np.array(size)], "int64")
    return tuple(slice(None) if i is None else i for i in indices)


def _index(type: TensorType, x: Array, indices: Sequence[Array | None], wrap: bool) -> Array:
    return x[_place(x, indices, wrap)]


def _index_put(
    type: TensorType, x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool, wrap: bool
) -> Array:
    result = np.array(x)
    place = _place(x, indices, wrap)
    if accumulate:
        np.add.at(result, place, values)
    else:
        result[place] = values
    return result


def _bitcast(type: TensorType, x: Array, dtype: DTypeArg) -> Array:
    stored = np.uint16 if type.dtype == "bfloat16" else numpy_ops.held_type(type.dtype)
    return decode(np.ascontiguousarray(x).view(stored), type.dtype)


def _bitcast_from(node_type: TensorType, x: Array, dtype: DTypeArg) -> Array:
    """bfloat16 operands are held as float32: their bits are found by the item size of the result."""
    if numpy_ops.held_type(node_type.dtype) in (np.int16, np.float16) and x.dtype == np.float32:
        x = encode(x, "bfloat16")
    return _bitcast(node_type, x, dtype).reshape(np.shape(x))


def _philox_uniform(
    type: TensorType, seed: Array, offset: Array, shape: Sequence[int], threads: int, width: int, device: str
) -> Array:
    count = int(np.prod(type.shape))
    return uniform(seed, offset, np.arange(count), np.array(threads), np.array(width)).reshape(type.shape)


def _direct_conv(type: TensorType, x: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int]) -> Array:
    rank = x.ndim - 2
    combine = np.multiply if weight.ndim == rank + 1 else np.matmul
    total = np.zeros(type.shape)
    for tap in np.ndindex(*weight.shape[:rank]):
        starts = [n * d for n, d in zip(tap, dilation, strict=True)]
        place = [slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(starts, stride, type.shape[1:-1], strict=True)]
        total = total + combine(x[(slice(None), *place)].astype(np.float64), weight[tap])
    return total


PRIMS: dict[str, Meaning] = {
    "direct_conv": _direct_conv,
    "convert_element_type": lambda type, x, dtype: rounded(x, type.dtype),
    "bitcast": _bitcast_from,
    "broadcast_in_dim": _broadcast,
    "permute": lambda type, x, dims: np.transpose(x, dims),
    "reshape": lambda type, x, shape: np.reshape(x, type.shape),
    "slice": lambda type, x, start, stop, step: x[_slices(start, stop, step)],
    "flip": lambda type, x, dims: np.flip(x, tuple(dims)),
    "cat": _cat,
    "pad": _pad,
    "as_strided": _as_strided,
    "slice_scatter": _slice_scatter,
    "clone": lambda type, x: x,
    "full": lambda type, shape, value, dtype=None: np.full(type.shape, rounded(np.array(value), type.dtype)),
    "iota": lambda type, length, start, step, dtype=None: start + np.arange(length) * step,
    "philox_uniform": _philox_uniform,
    "philox_state": lambda type, count, device: EXTERNS["stagefold.philox_state.default"](count, device),
    **dict.fromkeys(
        ("max_pool2d", "max_pool3d"),
        lambda type, x, kernel, stride, padding, dilation, ceil_mode: max_pool(
            x, kernel, stride, padding, dilation, ceil_mode
        ),
    ),
    **dict.fromkeys(
        ("max_pool2d_backward", "max_pool3d_backward"),
        lambda type, grad, x, kernel, indices, **_: max_pool_backward(grad, x, len(kernel), indices),
    ),
    "sum": _reduction(np.sum),
    "prod": _reduction(np.prod),
    "amax": _reduction(np.max),
    "amin": _reduction(np.min),
    "any": _reduction(np.any),
    "all": _reduction(np.all),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "var_mean": _var_mean,
    "cumsum": lambda type, x, dim: accumulated(np.add, x, dim),
    "cumprod": lambda type, x, dim: accumulated(np.multiply, x, dim),
    "logcumsumexp": lambda type, x, dim: accumulated(np.logaddexp, x, dim),
    "cummax": lambda type, x, dim: running(np.maximum, x, dim),
    "cummin": lambda type, x, dim: running(np.minimum, x, dim),
    "gather": _gather,
    "index": _index,
    "scatter": _scatter(add=False),
    "scatter_add": _scatter(add=True),
    "index_put": _index_put,
}
