"""Small Loop documents built by hand with the builder: what a code generator should try first.

`python -m loopir.testing.samples DIRECTORY` writes them as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from loopir.builder import Recorder, record
from loopir.schedule import Item, Names, Schedule, freeze
from stagewire import index as ix
from stagewire.codec import save
from stagewire.grad import Binding, BoundInput, Fresh
from stagewire.graph import Ref
from stagewire.loop import Buffer, Extern, Index, Loop
from stagewire.types import DType, TensorType, contiguous


def pointwise_chain() -> Loop:
    """y = gelu(x + b), z = x > 0: two outputs of one kernel, a broadcast bias."""

    def body(ops: Recorder, i: Index, j: Index) -> None:
        x = ops.load("x", i, j)
        a = ops.add(x, ops.load("b", j))
        y = ops.mul(ops.mul(a, 0.5), ops.add(ops.erf(ops.mul(a, 0.7071067811865476)), 1.0))
        ops.store("y", (i, j), y)
        ops.store("z", (i, j), ops.gt(x, 0.0))

    inputs = {"x": _f32(33, 65), "b": _f32(65)}
    outputs = {"y": _f32(33, 65), "z": contiguous("bool", (33, 65))}
    return document(inputs, outputs, lambda names, types: [record("chain", types, (33, 65), body, names=names)])


def softmax() -> Loop:
    """Three sections over one row; the exponential is computed twice."""

    def body(ops: Recorder, i: Index) -> None:
        with ops.over(100) as (j,):
            top = ops.reduce("max", ops.load("x", i, j))
        with ops.over(100) as (j,):
            total = ops.reduce("sum", ops.exp(ops.sub(ops.load("x", i, j), top)))
        with ops.over(100) as (j,):
            ops.store("y", (i, j), ops.div(ops.exp(ops.sub(ops.load("x", i, j), top)), total))

    return document(
        {"x": _f32(16, 100)},
        {"y": _f32(16, 100)},
        lambda names, types: [record("softmax", types, (16,), body, names=names)],
    )


def softmax_through_memory() -> Loop:
    """A section reads what an earlier one stored at the same outer point."""

    def body(ops: Recorder, i: Index) -> None:
        with ops.over(100) as (j,):
            top = ops.reduce("max", ops.load("x", i, j))
        with ops.over(100) as (j,):
            e = ops.exp(ops.sub(ops.load("x", i, j), top))
            ops.store("y", (i, j), e)
            total = ops.reduce("sum", e)
        with ops.over(100) as (j,):
            ops.store("y", (i, j), ops.div(ops.load("y", i, j), total))

    return document(
        {"x": _f32(16, 100)},
        {"y": _f32(16, 100)},
        lambda names, types: [record("softmax", types, (16,), body, names=names)],
    )


def layer_norm() -> Loop:
    """Welford, then the normalised row; mean and 1/std are outputs too (saved for backward)."""

    def body(ops: Recorder, i: Index, j: Index) -> None:
        with ops.over(48) as (k,):
            mean, squares, _ = ops.reduce("welford", ops.load("x", i, j, k))
        scale = ops.rsqrt(ops.add(ops.div(squares, 48.0), 1e-5))
        ops.store("mean", (i, j, ix.ZERO), mean)
        ops.store("rstd", (i, j, ix.ZERO), scale)
        with ops.over(48) as (k,):
            normal = ops.mul(ops.sub(ops.load("x", i, j, k), mean), scale)
            ops.store("y", (i, j, k), ops.add(ops.mul(normal, ops.load("w", k)), ops.load("b", k)))

    inputs = {"x": _f32(4, 8, 48), "w": _f32(48), "b": _f32(48)}
    outputs = {"y": _f32(4, 8, 48), "mean": _f32(4, 8, 1), "rstd": _f32(4, 8, 1)}
    return document(inputs, outputs, lambda names, types: [record("layer_norm", types, (4, 8), body, names=names)])


def column_sum() -> Loop:
    """The gradient of a bias: the reduced axis is the slow one."""

    def body(ops: Recorder, j: Index) -> None:
        with ops.over(200) as (i,):
            total = ops.reduce("sum", ops.load("g", i, j))
        ops.store("s", (j,), total)

    return document(
        {"g": _f32(200, 70)}, {"s": _f32(70)}, lambda names, types: [record("sum", types, (70,), body, names=names)]
    )


def embedding() -> Loop:
    """weight[token] + position[t], negative tokens wrap."""

    def body(ops: Recorder, b: Index, t: Index, c: Index) -> None:
        token = ops.emitter.place(ops.wrap_index(ops.load("token", b, t), 50))
        ops.store("y", (b, t, c), ops.add(ops.load("weight", token, c), ops.load("position", t, c)))

    inputs = {"token": contiguous("int64", (2, 7)), "weight": _f32(50, 24), "position": _f32(7, 24)}
    return document(
        inputs, {"y": _f32(2, 7, 24)}, lambda names, types: [record("embedding", types, (2, 7, 24), body, names=names)]
    )


def concatenation() -> Loop:
    """Two kernels write the two halves of one buffer."""

    def left(ops: Recorder, i: Index, j: Index) -> None:
        ops.store("y", (i, j), ops.neg(ops.load("a", i, j)))

    def right(ops: Recorder, i: Index, j: Index) -> None:
        ops.store("y", (i, ix.shift(j, 5)), ops.load("b", i, j))

    return document(
        {"a": _f32(6, 5), "b": _f32(6, 9)},
        {"y": _f32(6, 14)},
        lambda names, types: [
            record("left", types, (6, 5), left, names=names),
            record("right", types, (6, 9), right, names=names),
        ],
    )


def transpose_add() -> Loop:
    """x + y.T: one operand is read along its slow axis."""

    def body(ops: Recorder, i: Index, j: Index) -> None:
        ops.store("z", (i, j), ops.add(ops.load("x", i, j), ops.load("y", j, i)))

    return document(
        {"x": _f32(40, 50), "y": _f32(50, 40)},
        {"z": _f32(40, 50)},
        lambda names, types: [record("add", types, (40, 50), body, names=names)],
    )


def full_reduction() -> Loop:
    """The mean of all elements: no outer axes."""

    def body(ops: Recorder) -> None:
        with ops.over(90, 110) as (i, j):
            total = ops.reduce("sum", ops.load("x", i, j))
        ops.store("m", (), ops.div(total, 9900.0))

    return document(
        {"x": _f32(90, 110)}, {"m": _f32()}, lambda names, types: [record("mean", types, (), body, names=names)]
    )


def argmax() -> Loop:
    """The position of the largest in each row, and the largest itself."""

    def body(ops: Recorder, i: Index) -> None:
        with ops.over(37) as (j,):
            x = ops.load("x", i, j)
            place = ops.reduce("argmax", x, "int64")
            top = ops.reduce("max", x)
        ops.store("place", (i,), place)
        ops.store("top", (i,), top)

    return document(
        {"x": _f32(9, 37)},
        {"place": contiguous("int64", (9,)), "top": _f32(9)},
        lambda names, types: [record("argmax", types, (9,), body, names=names)],
    )


def embedding_backward() -> Loop:
    """index_put with accumulation: a fill, then atomic adds at loaded positions."""

    def fill(ops: Recorder, i: Index, c: Index) -> None:
        ops.store("gw", (i, c), 0.0)

    def scatter(ops: Recorder, t: Index, c: Index) -> None:
        token = ops.emitter.place(ops.wrap_index(ops.load("token", t), 50))
        ops.store("gw", (token, c), ops.load("g", t, c), "atomic_add")

    return document(
        {"token": contiguous("int64", (30,)), "g": _f32(30, 24)},
        {"gw": _f32(50, 24)},
        lambda names, types: [
            record("fill", types, (50, 24), fill, names=names),
            record("scatter", types, (30, 24), scatter, names=names),
        ],
    )


def pad_half() -> Loop:
    """A masked load, bfloat16 in and out, arithmetic in float32."""

    def body(ops: Recorder, i: Index, j: Index) -> None:
        row = ops.index(i)
        inside = ops.logical_and(ops.ge(row, 2), ops.lt(row, 7))
        x = ops.convert(ops.load("x", ix.shift(i, -2), j, mask=inside, other=1.0), "float32")
        ops.store("y", (i, j), ops.convert(ops.mul(x, 3.0), "bfloat16"))

    half: DType = "bfloat16"
    return document(
        {"x": contiguous(half, (5, 33))},
        {"y": contiguous(half, (9, 33))},
        lambda names, types: [record("pad", types, (9, 33), body, names=names)],
    )


def matmul_relu() -> Loop:
    """An extern between kernels."""

    def body(ops: Recorder, i: Index, j: Index) -> None:
        ops.store("y", (i, j), ops.maximum(ops.load("mm", i, j), 0.0))

    loop = document(
        {"a": _f32(8, 16), "b": _f32(16, 12)},
        {"y": _f32(8, 12)},
        lambda names, types: [
            Extern("aten.mm.default", (Ref("a"), Ref("b")), {}, ("mm",)),
            record("relu", types, (8, 12), body, names=names),
        ],
        temporaries={"mm": (_f32(8, 12), "extern")},
    )
    return loop


def scanned_rows() -> Loop:
    """Running sums of rows of integers that are longer than a tile, between what is done to each point."""

    def body(ops: Recorder, i: Index) -> None:
        with ops.over(4100) as (j,):
            total = ops.scan("sum", ops.mul(ops.load("x", i, j), 2))
            ops.store("y", (i, j), ops.add(total, 1))

    return document(
        {"x": contiguous("int64", (3, 4100))},
        {"y": contiguous("int64", (3, 4100))},
        lambda names, types: [record("scan", types, (3,), body, names=names)],
    )


def scanned_columns() -> Loop:
    """The running maximum of each column, and how much lies below the last."""

    def body(ops: Recorder, i: Index) -> None:
        with ops.over(70) as (j,):
            top = ops.scan("max", ops.load("x", j, i))
            ops.store("y", (j, i), top)
            below = ops.reduce("sum", ops.sub(top, ops.load("x", j, i)))
        ops.store("s", (i,), below)

    return document(
        {"x": _f32(70, 40)},
        {"y": _f32(70, 40), "s": _f32(40)},
        lambda names, types: [record("scan", types, (40,), body, names=names)],
    )


def _f32(*shape: int) -> TensorType:
    return contiguous("float32", shape)


def document(
    inputs: dict[str, TensorType],
    outputs: dict[str, TensorType],
    build: Callable[[Names, dict[str, TensorType]], list[Item]],
    temporaries: dict[str, tuple[TensorType, str]] | None = None,
) -> Loop:
    """A forward-only document around the items that `build` records."""
    temporaries = temporaries or {}
    types = {**inputs, **outputs, **{name: type for name, (type, _) in temporaries.items()}}
    roles = {
        **dict.fromkeys(inputs, "input"),
        **dict.fromkeys(outputs, "kernel"),
        **{n: r for n, (_, r) in temporaries.items()},
    }
    names = Names()
    items = build(names, types)
    schedule = Schedule(
        buffers={name: Buffer(name, type, roles[name]) for name, type in types.items()},  # type: ignore[arg-type]
        inputs=tuple(inputs),
        outputs=tuple(Ref(name) for name in outputs),
        items=tuple(items),
        fresh=names.count,
    )
    binding = Binding(
        inputs=tuple(BoundInput(name, type) for name, type in inputs.items()),
        outputs=tuple(Fresh(n) for n in range(len(outputs))),
    )
    return Loop(binding=binding, forward=freeze(schedule))


SAMPLES: dict[str, Callable[[], Loop]] = {
    function.__name__: function
    for function in (
        pointwise_chain, softmax, softmax_through_memory, layer_norm, column_sum, embedding, concatenation,
        transpose_add, full_reduction, argmax, embedding_backward, pad_half, matmul_relu,
        scanned_rows, scanned_columns,
    )
}  # fmt: skip


def main(directory: str) -> None:
    """Write every sample to `directory`."""
    for name, make in SAMPLES.items():
        save(make(), Path(directory) / f"{name}.json")


if __name__ == "__main__":
    main(sys.argv[1])
