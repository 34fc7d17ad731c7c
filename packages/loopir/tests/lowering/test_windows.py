"""Max pooling in loops, held against numpy: padding, steps, overhang, equals, nan; what stays a call of ATen."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from loopir.interpret import interpret
from loopir.stage import LoopIR
from loopir.testing.graphs import document
from stagewire.capture import Symbol
from stagewire.loop import Extern
from stagewire.parser import parse_graph
from stagewire.verify import verify

TEXT = """input %x: {dtype}{shape}
%y: {dtype}{out}, %i: i64{out} = prims.max_pool2d(%x, {window}, {ceil})
return %y, %i
"""
CASES = [
    ((2, 3, 6, 8), [[2, 2], [2, 2], [0, 0], [1, 1]], False),
    ((2, 3, 7, 9), [[3, 3], [2, 2], [1, 1], [1, 1]], False),
    ((2, 3, 7, 8), [[3, 2], [2, 3], [1, 1], [1, 1]], True),
    ((1, 2, 9, 9), [[3, 3], [1, 2], [0, 0], [2, 3]], False),
    ((3, 5, 5), [[5, 5], [1, 1], [2, 2], [1, 1]], False),
]


def windows(x: np.ndarray, sizes: list[list[int]], out: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """By definition: a greater element or a nan replaces the best so far."""
    (height, width), (a, b), (top, left), (down, right) = x.shape[-2:], *sizes[1:]
    values, places = np.empty(out, x.dtype), np.empty(out, np.int64)
    for at in np.ndindex(*out):
        best, place = None, 0
        for i, j in product(range(sizes[0][0]), range(sizes[0][1])):
            row, column = at[-2] * a - top + i * down, at[-1] * b - left + j * right
            if 0 <= row < height and 0 <= column < width:
                one = x[(*at[:-2], row, column)]
                if best is None or one > best or one != one:
                    best, place = one, row * width + column
        values[at], places[at] = best, place
    return values, places


def pooled(shape: tuple[int, ...], sizes: list[list[int]], ceil: bool) -> tuple[int, ...]:
    """The shape of the result."""
    found = []
    for n, window, step, pad, spread in zip(shape[-2:], *sizes, strict=True):
        last = n + 2 * pad - spread * (window - 1) - 1
        count = -(-last // step) + 1 if ceil else last // step + 1
        found.append(count - (ceil and (count - 1) * step >= n + pad))
    return (*shape[:-2], *found)


def graph(shape: tuple[int, ...], sizes: list[list[int]], ceil: bool, dtype: str = "f32"):
    out = list(pooled(shape, sizes, ceil))
    window = str(sizes)[1:-1]
    return parse_graph(TEXT.format(dtype=dtype, shape=list(shape), out=out, window=window, ceil=ceil))


@pytest.mark.parametrize("dtype", ["f32", "i32"])
@pytest.mark.parametrize(("shape", "sizes", "ceil"), CASES)
def test_windows_by_definition(shape: tuple[int, ...], sizes: list[list[int]], ceil: bool, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 3, shape).astype("int32" if dtype == "i32" else "float32")  # many are equal
    if dtype == "f32":
        x[rng.random(shape) < 0.1] = np.nan
        x[rng.random(shape) < 0.5] = -np.inf
    loop = LoopIR().run(document(graph(shape, sizes, ceil, dtype)))
    verify(loop)
    assert not any(isinstance(step, Extern) for step in loop.forward.steps)
    values, places = interpret(loop.forward, [x], {})
    expected = windows(x, sizes, pooled(shape, sizes, ceil))
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(places, expected[1])


BACKWARD = """input %g: f32{out}@cuda:0
input %x: f32{shape}@cuda:0
input %i: i64{out}@cuda:0
%y: f32{shape}@cuda:0 = prims.max_pool2d_backward(%g, %x, {window}, {ceil}, %i)
return %y
"""


@pytest.mark.parametrize(("shape", "sizes", "ceil"), [*CASES, ((2, 2, 9, 8), [[2, 1], [3, 4], [1, 0], [1, 1]], False)])
def test_gradients_are_gathered_on_a_gpu(shape: tuple[int, ...], sizes: list[list[int]], ceil: bool) -> None:
    out, window = pooled(shape, sizes, ceil), str(sizes)[1:-1]
    given = parse_graph(BACKWARD.format(shape=list(shape), out=list(out), window=window, ceil=ceil))
    loop = LoopIR().run(document(given))
    verify(loop)
    calls = [step.target for step in loop.forward.steps if isinstance(step, Extern)]
    assert calls == (["aten.max_pool2d_with_indices_backward.default"] if max(sizes[3]) > 1 else [])
    if calls:
        return
    rng = np.random.default_rng(0)
    x, grad = rng.integers(-3, 3, shape).astype("float32"), rng.integers(-9, 9, out).astype("float32")
    places = windows(x, sizes, out)[1]
    expected = np.zeros(shape, "float32")
    for at in np.ndindex(*out):
        expected[(*at[:-2], *divmod(places[at], shape[-1]))] += grad[at]
    (found,) = interpret(loop.forward, [grad, x, places], {})
    np.testing.assert_array_equal(found, expected)


SYMBOLIC_BACKWARD = """input %g: f32[n, 2, {0}, {1}]@cuda:0
input %x: f32[n, 2, h, w]@cuda:0
input %i: i64[n, 2, {0}, {1}]@cuda:0
%y: f32[n, 2, h, w]@cuda:0 = prims.max_pool2d_backward(%g, %x, [3, 3], [2, 2], [1, 1], [1, 1], False, %i)
return %y
"""


def test_gradients_of_symbolic_sizes() -> None:
    sizes = [[3, 3], [2, 2], [1, 1], [1, 1]]
    prim = document(parse_graph(SYMBOLIC_BACKWARD.format("(h - 1)//2 + 1", "(w - 1)//2 + 1")))
    symbols = tuple(Symbol(name, None, 8, 2) for name in "nhw")
    loop = LoopIR().run(replace(prim, binding=replace(prim.binding, symbols=symbols)))
    verify(loop)
    assert not any(isinstance(step, Extern) for step in loop.forward.steps)
    rng = np.random.default_rng(0)
    for shape in ((1, 2, 8, 7), (3, 2, 5, 6)):
        out = pooled(shape, sizes, False)
        x, grad = rng.integers(-3, 3, shape).astype("float32"), rng.integers(-9, 9, out).astype("float32")
        places = windows(x, sizes, out)[1]
        expected = np.zeros(shape, "float32")
        for at in np.ndindex(*out):
            expected[(*at[:-2], *divmod(places[at], shape[-1]))] += grad[at]
        (found,) = interpret(loop.forward, [grad, x, places], {})
        np.testing.assert_array_equal(found, expected)


SYMBOLIC = """input %x: f32[n, 2, h, w]
%y: f32[n, 2, {0}, {1}], %i: i64[n, 2, {0}, {1}] = prims.max_pool2d(%x, {2}, False)
return %y, %i
"""


@pytest.mark.parametrize(
    ("out", "sizes"),
    [
        (("(h - 1)//2 + 1", "(w - 1)//2 + 1"), [[3, 3], [2, 2], [1, 1], [1, 1]]),
        (("h//2", "(w - 3)//2 + 1"), [[2, 3], [2, 2], [0, 0], [1, 1]]),
        (("h", "w - 2"), [[5, 3], [1, 1], [2, 0], [1, 1]]),
    ],
)
def test_windows_of_symbolic_sizes(out: tuple[str, str], sizes: list[list[int]]) -> None:
    prim = document(parse_graph(SYMBOLIC.format(*out, str(sizes)[1:-1])))
    symbols = tuple(Symbol(name, None, 8, 2) for name in "nhw")
    loop = LoopIR().run(replace(prim, binding=replace(prim.binding, symbols=symbols)))
    verify(loop)
    assert not any(isinstance(step, Extern) for step in loop.forward.steps)
    rng = np.random.default_rng(0)
    for shape in ((1, 2, 8, 7), (3, 2, 5, 6), (2, 2, 3, 3), (1, 2, 16, 9)):
        x = rng.integers(-3, 3, shape).astype("float32")
        x[rng.random(shape) < 0.1] = np.nan
        values, places = interpret(loop.forward, [x], {})
        expected = windows(x, sizes, pooled(shape, sizes, False))
        np.testing.assert_array_equal(values, expected[0])
        np.testing.assert_array_equal(places, expected[1])


@pytest.mark.parametrize(
    "sizes", [[[6, 6], [2, 2], [0, 0], [1, 1]], [[3, 3], [2, 2], [1, 1], [2, 2]]], ids=["large", "padded and spread"]
)
def test_what_stays_a_call(sizes: list[list[int]]) -> None:
    loop = LoopIR().run(document(graph((1, 2, 12, 12), sizes, False)))
    assert [step.target for step in loop.forward.steps if isinstance(step, Extern)] == [
        "aten.max_pool2d_with_indices.default"
    ]


CONVOLVED = """input %x: {0}
input %w: {1}
%p: {2} = prims.pad(%x, [0, 1, 2, 0], [0, 1, 2, 0], 0.0)
%y: {3} = prims.direct_conv(%p, %w, [2, 1], [1, 2])
return %y
"""


def convolved(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Steps of (2, 1), dilation (1, 2), padding (1, 2), by definition."""
    x = np.pad(x.astype("float64"), ((0, 0), (1, 1), (2, 2), (0, 0)))
    whole = weight if weight.ndim == 4 else weight[..., None, :] * np.eye(weight.shape[-1])
    out = (x.shape[1] - weight.shape[0]) // 2 + 1, x.shape[2] - 2 * (weight.shape[1] - 1)
    made = np.zeros((x.shape[0], *out, weight.shape[-1]))
    for n, i, j in np.ndindex(*made.shape[:3]):
        for k, m in np.ndindex(*weight.shape[:2]):
            made[n, i, j] += x[n, 2 * i + k, j + 2 * m] @ whole[k, m]
    return made


@pytest.mark.parametrize("weight", [(3, 2, 5), (3, 2, 5, 4)], ids=["each channel", "all channels"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_convolutions_of_few_terms(weight: tuple[int, ...], dtype: str) -> None:
    shapes = [[2, 7, 6, 5], [*weight], [2, 9, 10, 5], [2, 4, 8, weight[-1]]]
    loop = LoopIR().run(document(parse_graph(CONVOLVED.format(*(f"{dtype}{shape}" for shape in shapes)))))
    verify(loop)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype("float32") for shape in shapes[:2])
    (found,) = interpret(loop.forward, [x, w], {})
    np.testing.assert_array_equal(found, convolved(x, w))


def test_images_of_symbolic_sizes_are_convolved() -> None:
    shapes = ["[n, h, w, 3]", "[3, 2, 3]", "[n, h + 2, w + 4, 3]", "[n, (h - 1)//2 + 1, w + 2, 3]"]
    prim = document(parse_graph(CONVOLVED.format(*(f"f32{shape}" for shape in shapes))))
    symbols = tuple(Symbol(name, None, 8, 2) for name in "nhw")
    loop = LoopIR().run(replace(prim, binding=replace(prim.binding, symbols=symbols)))
    verify(loop)
    rng = np.random.default_rng(0)
    for shape in ((1, 8, 7, 3), (3, 5, 2, 3)):
        x, w = rng.integers(-3, 4, shape).astype("float32"), rng.integers(-3, 4, (3, 2, 3)).astype("float32")
        (found,) = interpret(loop.forward, [x, w], {})
        np.testing.assert_array_equal(found, convolved(x, w))


TURNED = """input %x: f32[1, 40, 40, 8]
input %w: f32[3, 3, 8]
%p: f32[1, 42, 42, 8] = prims.pad(%x, [0, 1, 1, 0], [0, 1, 1, 0], 0.0)
%y: f32[1, 40, 40, 8] = prims.direct_conv(%p, %w, [1, 1], [1, 1])
%t: f32[1, 8, 40, 40]{12800, 1, 320, 8} = prims.permute(%y, [0, 3, 1, 2])
%z: f32[1, 8, 40, 40]{12800, 1, 320, 8} = prims.maximum(%t, 0)
return %z
"""


def test_a_padded_image_lies_as_what_is_made_of_it() -> None:
    """Its readers go over channels fastest, though these are the second axis of the loops that they are lowered to."""
    loop = LoopIR().run(document(parse_graph(TURNED)))
    (padded,) = [buffer.type for buffer in loop.forward.buffers if buffer.type.shape == (1, 42, 42, 8)]
    assert padded.stride[1:] == (336, 8, 1)
