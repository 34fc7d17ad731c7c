"""Programs on operands that tempt a kernel to touch memory of others: indices out of range, sizes around the width of
vectors, windows, reversals, overlapping and expanded memory, storages that end where the tensor does.

`check` runs one compiled and eager; `tools/sanitize_kernels.py` runs all under the address sanitizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import stagefold

SIZES = (0, 17, 65, 1, 7, 2, 3, 8, 9, 15, 16, 31, 33, 63, 127, 257, 1023, 1025)
"""Around the lanes of vectors of 128 to 512 bits, and the blocks of sums."""

FIXED = 4
"""So many layouts of operands, the first ones, are also compiled for by themselves."""


class Program(NamedTuple):
    """name: for messages. function: what is compiled. operands: of each call, in order."""

    name: str
    function: Callable[..., Any]
    operands: Callable[[], Iterator[tuple[torch.Tensor, ...]]]


def sized(
    *shapes: Callable[[int], tuple[int, ...]], dtype: torch.dtype = torch.float32, sizes: tuple[int, ...] = SIZES
) -> Callable[[], Iterator[tuple[torch.Tensor, ...]]]:
    """Operands of all sizes, each with a storage that ends where it does."""
    return lambda: (tuple(torch.randn(shape(n)).to(dtype) for shape in shapes) for n in sizes)


def values(*rows: list[float]) -> Callable[[], Iterator[tuple[torch.Tensor, ...]]]:
    """One operand a call."""
    return lambda: ((torch.tensor(row),) for row in rows)


def strided() -> Iterator[tuple[torch.Tensor, ...]]:
    """Layouts of one shape: transposed, reversed order of axes, expanded, overlapping, every second, a tail."""
    for n in (1, 3, 8, 17, 33, 65):
        yield (torch.randn(n, n).t(),)
        yield (torch.randn(n, 1).expand(n, n),)
        yield (torch.randn(1, n).expand(n, n),)
        yield (torch.randn(2 * n).as_strided((n, n), (1, 1)),)
        yield (torch.randn(n, 2 * n)[:, ::2],)
        yield (torch.randn(n * n + 3)[3:].view(n, n),)
        yield (torch.randn(n + 1, n + 1)[1:, 1:],)


def picks(*shape: int) -> Callable[[], Iterator[tuple[torch.Tensor, ...]]]:
    """A tensor and indices into its first dimension: the ends, both signs, one past each end, far out, none."""

    def operands() -> Iterator[tuple[torch.Tensor, ...]]:
        size = shape[0]
        for values in ([0, size - 1], [-1, -size], [0, size], [-size - 1], [1 << 40], [-(1 << 62)], []):
            yield torch.randn(shape), torch.tensor(values, dtype=torch.int64)
        yield torch.randn(shape), torch.tensor([0, size] * 40)

    return operands


def writes(*shape: int) -> Callable[[], Iterator[tuple[torch.Tensor, ...]]]:
    """As `picks`, with values to be written."""
    return lambda: ((x, i, torch.randn(i.numel(), *shape[1:])) for x, i in picks(*shape)())


def targets() -> Iterator[tuple[torch.Tensor, ...]]:
    """Classes that there are and are not."""
    for values in ([0, 4, 2], [0, 5, 1], [0, -1, 2], [-100, 1, 2], [1 << 33, 0, 0]):
        yield torch.randn(3, 5), torch.tensor(values)


PROGRAMS = (
    Program("pointwise", lambda x: (x * 2 + 1).sin() - x.exp(), sized(lambda n: (n,))),
    Program("pointwise bfloat16", lambda x: (x * 2 + 1).tanh(), sized(lambda n: (n,), dtype=torch.bfloat16)),
    Program("pointwise float16", lambda x: (x * 2 + 1).tanh(), sized(lambda n: (n,), dtype=torch.float16)),
    Program("pointwise float64", lambda x: (x * 2 + 1).erf(), sized(lambda n: (n,), dtype=torch.float64)),
    Program("conversions", lambda x: (x.to(torch.uint8), x.long(), x.bool(), x.bfloat16()), sized(lambda n: (n,))),
    Program("sums of rows", lambda x: (x.sum(1), (x * x).mean(1), (x > 0).any(1)), sized(lambda n: (3, n))),
    Program("places", lambda x: (x.argmin(1), x.amax(1)), sized(lambda n: (3, n), sizes=SIZES[1:])),
    Program("sums of columns", lambda x: (x.sum(0), x.var(0)), sized(lambda n: (n, 5))),
    Program("softmax", lambda x: torch.softmax(x, -1), sized(lambda n: (3, n))),
    Program("layer norm", lambda x: F.layer_norm(x, x.shape[-1:]), sized(lambda n: (3, n))),
    Program("transposed sum", lambda x, y: torch.relu(x - y.t()), sized(lambda n: (n, 9), lambda n: (9, n))),
    Program("concatenation", lambda x, y: torch.cat((x, y, x), 1).t() * 2, sized(lambda n: (5, n), lambda n: (5, 3))),
    Program("reflection", lambda x: F.pad(x, (3, 2), mode="reflect") * 2,
            sized(lambda n: (1, 2, n), sizes=(4, 5, 17, 64))),
    Program("padding", lambda x: F.pad(x, (3, 2, 1, 0), value=1.5) * 2, sized(lambda n: (3, n))),
    Program("cropping", lambda x: F.pad(x, (-1, 2)) * 2, sized(lambda n: (3, n), sizes=(1, 2, 9, 33))),
    Program("reversal", lambda x: x.flip(0, 1) * 2 + x, sized(lambda n: (3, n))),
    Program("rolled", lambda x: torch.roll(x, (1, -3), (0, 1)) + x, sized(lambda n: (3, n))),
    Program("windows", lambda x: x.unfold(1, 3, 2).sum(-1), sized(lambda n: (3, n), sizes=(3, 4, 17, 64))),
    Program("max pooling", lambda x: F.max_pool2d(x, 3, 2, 1),
            sized(lambda n: (1, 2, n, n + 1), sizes=(1, 2, 7, 16, 33))),
    Program("resampling", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
            sized(lambda n: (1, 2, n, n), sizes=(1, 2, 7, 17))),
    Program("layouts", lambda x: (x * 2 + 1, x.sum(0), x.softmax(1)), strided),
    Program("rows by index", lambda x, i: x[i] * 2, picks(7, 5)),
    Program("elements by index", lambda x, i: x[i] * 2, picks(9)),
    Program("columns by index", lambda x, i: x.t()[:, i] + 1, picks(7, 5)),
    Program("index_select", lambda x, i: x.index_select(0, i) + 1, picks(7, 5)),
    Program("take", lambda x, i: torch.take(x, i) + 1, picks(9)),
    Program("embedding", lambda x, i: F.embedding(i, x) * 2, picks(7, 5)),
    Program("gather", lambda x, i: x.gather(0, i[:, None].expand(i.numel(), 5)) * 2, picks(7, 5)),
    Program("scatter", lambda x, i, v: x.scatter(0, i[:, None].expand(i.numel(), 5), v) * 2, writes(7, 5)),
    Program("scatter_add", lambda x, i, v: x.scatter_add(0, i[:, None].expand(i.numel(), 5), v) * 2, writes(7, 5)),
    Program("index_add", lambda x, i, v: x.index_add(0, i, v) * 2, writes(7, 5)),
    Program("index_copy", lambda x, i, v: x.index_copy(0, i[:1], v[:1]) * 2, writes(7, 5)),
    Program("index_put", lambda x, i, v: x.index_put((i,), v, accumulate=True) * 2, writes(7, 5)),
    Program("nll_loss", lambda x, i: F.nll_loss(x.log_softmax(1), i), targets),
    Program("cross_entropy", lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1), targets),
    Program("one_hot", lambda x, i: F.one_hot(i, 5) * x, targets),
    Program("division", lambda x: (100 // x, 100 % x), values([1, -3], [7, 0], [-1] * 33)),
    Program("shifts", lambda x: (x << 3, x >> 2, 1 << x), values([0, 1, 31], [62, 63, 5])),
    Program("narrowing casts", lambda x: (x.to(torch.int32), x.to(torch.int8)),
            values([1.5, -2.5, 100.0], [-128.0, 127.0] * 20)),
)  # fmt: skip


def outcome(function: Callable[..., Any], operands: tuple[torch.Tensor, ...]) -> Any:
    """The results of a call on copies of its operands in the same layout, or the error that it raises."""
    try:
        return function(*(_copy(x) for x in operands))
    except (IndexError, RuntimeError, ValueError) as error:
        return error


def _copy(x: torch.Tensor) -> torch.Tensor:
    """The same layout in a storage of its own that ends where the tensor does."""
    span = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    memory = x.as_strided((span,), (1,)).clone() if span else x.new_empty(0)
    return memory.as_strided(x.shape, x.stride())


def check(program: Program, options: Mapping[str, Any]) -> int:
    """Compare every call of a program with eager's, compiled for any sizes and some for theirs alone; how many."""
    count = 0
    for dynamic in (False, True):
        torch.manual_seed(0)
        stagefold.reset()
        compiled = stagefold.compile(program.function, dynamic=dynamic, options=dict(options, recompile_limit=64))
        layouts: set[Any] = set()
        for operands in program.operands():
            layouts.add(tuple((x.shape, x.stride()) for x in operands))
            if not dynamic and len(layouts) > FIXED:
                break
            expected, found = outcome(program.function, operands), outcome(compiled, operands)
            where = f"{program.name} (dynamic={dynamic}) of {[(tuple(x.shape), x.stride()) for x in operands]}"
            if not isinstance(expected, Exception):  # what is to be refused is the matter of tools/refusals
                assert not isinstance(found, Exception), f"{where}: {found!r}"
                torch.testing.assert_close(
                    found, expected, rtol=2e-2, atol=2e-2, equal_nan=True, msg=lambda text, w=where: f"{w}: {text}"
                )
            count += 1
    return count
