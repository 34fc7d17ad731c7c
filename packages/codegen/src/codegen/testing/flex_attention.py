"""Calls of FlexAttention as graphs, for tests of targets."""

from __future__ import annotations

import math

import torch

from stagewire.codec import VERSIONS
from stagewire.expr import Dim, symbol
from stagewire.flex_attention import BACKWARD, FORWARD, NO_BLOCKS
from stagewire.graph import List, Ref
from stagewire.loop import Buffer, Extern, LoopGraph
from stagewire.types import TensorType, contiguous

BATCH, HEADS, SHARED, LENGTH, KEYS = 2, 4, 2, 40, 50

SCORE = """\
loop {version} {{
  binding {{
    inputs {{
    }}
    outputs {{
    }}
  }}
  forward {{
    buffers {{
{inputs}
      %output: {dtype}[{points}] = kernel
    }}
    inputs = ({names})
    outputs = (%output,)
    steps {{
      kernel kernel0 for i0 in {heads}, i1 in {rows}, i2 in {columns} {{
        section {{
{lines}
          store %output[{place}] = %out
        }}
      }}
    }}
  }}
}}
"""


def function(lines: list[str], dtype: str = "f32", inputs: int = 1, sizes: tuple[Dim, ...] = ()) -> str:
    """The text of a function of the score `%score`, of heads i0, queries i1 and keys i2."""
    batch, heads, rows, columns = sizes or (BATCH, HEADS, LENGTH, KEYS)
    points = f"{batch}, {heads}, {rows}, {columns}"
    place = " + ".join([*(f"{{{n}}}*{i}" for i, n in (("i0", rows * columns), ("i1", columns))), "i2"])
    loads = [f"%{name}: f32 = load %{name}[{place}]" for name in ("score", "tangent")[:inputs]]
    return SCORE.format(
        version=VERSIONS["loop"],
        inputs="\n".join(f"      %{name}: f32[{points}] = input" for name in ("score", "tangent")[:inputs]),
        names=", ".join(f'"{name}"' for name in ("score", "tangent")[:inputs]) + ",",
        points=points, place=place, dtype=dtype, heads=batch * heads, rows=rows, columns=columns,
        lines="\n".join(f"          {line}" for line in [*loads, *lines]),
    )  # fmt: skip


CAUSAL = ["%q: i64 = index i1", "%k: i64 = index i2", "%out: b8 = ge(%q, %k)"]
TWICE = ["%out: f32 = mul(%score, 2.0)"]
TWICE_BACK = ["%out: f32 = mul(%tangent, 2.0)"]


def attention(
    functions: list[str], *, backward: bool = False, dtype: str = "float32", width: int = 16,
    blocks: tuple[str, ...] = (), sizes: tuple[Dim, ...] = (BATCH, HEADS, LENGTH, KEYS),
) -> LoopGraph:  # fmt: skip
    """One call, whose buffers are query, key, value, lists of blocks, and what the backward takes.

    blocks: names of the kinds of lists, of which each has four: those with a mask, or these and those without.
    """
    batch, heads, length, keys = sizes
    query = contiguous(dtype, (batch, heads, length, width))
    key = contiguous(dtype, (batch, max(1, heads // 2), keys, width))
    row = contiguous("float32", (batch, heads, length))
    rows, columns = (-(-n // 16) if isinstance(n, int) else symbol(f"{n}_blocks") for n in (length, keys))
    listed = {"kv_num": (rows,), "kv": (rows, columns), "q_num": (columns,), "q": (columns, rows)}
    given = {"query": query, "key": key, "value": key}
    lists = {f"{kind}_{name}": contiguous("int32", (1, 1, *shape)) for kind in blocks for name, shape in listed.items()}
    more = {"grad": query, "logsumexp": row, "delta": row} if backward else {}
    made = dict(zip("abc", (query, key, key) if backward else (query, row, row), strict=True))
    call = Extern(
        BACKWARD if backward else FORWARD,
        (*(Ref(name) for name in given), List(tuple(Ref(name) for name in lists)), List(()), List(tuple(functions)),
         0.25, List((16, 16) if blocks else (NO_BLOCKS, NO_BLOCKS)), List(tuple(functions)),
         *(Ref(name) for name in more)),
        {}, tuple(made),
    )  # fmt: skip
    types: dict[str, TensorType] = {**given, **lists, **more}
    buffers = [Buffer(name, type_, "input") for name, type_ in types.items()]
    buffers += [Buffer(name, type_, "extern") for name, type_ in made.items()]
    return LoopGraph(
        buffers=tuple(buffers), inputs=tuple(types), outputs=tuple(Ref(name) for name in made), steps=(call,)
    )


def operands() -> list[torch.Tensor]:
    """Queries, keys and values."""
    torch.manual_seed(0)
    shapes = [(BATCH, HEADS, LENGTH, 16), (BATCH, SHARED, KEYS, 16), (BATCH, SHARED, KEYS, 16)]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def expected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool, factor: float
) -> tuple[torch.Tensor, ...]:
    """Results, and the statistics of their scores."""
    key, value = (each.repeat_interleave(HEADS // SHARED, 1) for each in (key, value))
    scores = query @ key.mT * 0.25 * factor
    if causal:
        scores = scores.masked_fill(torch.ones(LENGTH, KEYS).triu(1).bool(), -math.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)
