"""unroll_choices: parts of bytes are read once where they are summed up, and the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from loopir.interpret import interpret
from loopir.pipeline import PASSES
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import document, kernels
from stagewire.loop import Load, LoopGraph
from stagewire.statements import select, statements_of
from stagewire.verify import verify


def packed(parts: int, device: str = "@cuda:0", rows: int = 3, length: int = 24) -> str:
    """The sums of x[k] * w[i, k], where bytes have `parts` of the weights."""
    count, bits = length // parts, 8 // parts
    lines = [f"input %x: f32[{length}]{device}", f"input %w: u8[{rows}, {count}]{device}"]
    names = []
    for n in range(parts):
        lines += [
            f"%shifted{n}: u8[{rows}, {count}]{device} = prims.shift_right(%w, {n * bits})",
            f"%part{n}: u8[{rows}, {count}]{device} = prims.bitwise_and(%shifted{n}, {2**bits - 1})",
            f"%wide{n}: u8[{rows}, {count}, 1]{device} = prims.reshape(%part{n}, [{rows}, {count}, 1])",
        ]
        names.append(f"%wide{n}")
    shape = f"[{rows}, {length}]"
    lines += [
        f"%all: u8[{rows}, {count}, {parts}]{device} = prims.cat([{', '.join(names)}], 2)",
        f"%flat: u8{shape}{device} = prims.reshape(%all, {shape})",
        f"%float: f32{shape}{device} = prims.convert_element_type(%flat, dtype(float32))",
        f"%left: f32{shape}{{0, 1}}{device} = prims.broadcast_in_dim(%x, {shape}, [1])",
        f"%p: f32{shape}{device} = prims.mul(%left, %float)",
        f"%y: f32[{rows}]{device} = prims.sum(%p, [1])",
        f"%top: f32[{rows}]{device} = prims.amax(%p, [1])",
    ]
    return "\n".join(lines) + "\n"


def lowered(text: str, *, unrolled: bool = True) -> LoopGraph:
    passes = tuple(p for p in PASSES if unrolled or p.name != "unroll_choices")
    loop = LoopIR().run(document(text), Options(passes=passes))
    verify(loop)
    return loop.forward


def bytes_loaded(graph: LoopGraph) -> int:
    """Loads of bytes at a point, of all kernels."""
    return sum(one.dtype == "uint8" for kernel in kernels(graph) for one in select(kernel.sections, Load))


@pytest.mark.parametrize("parts", [2, 4])
def test_each_byte_is_read_once(parts: int) -> None:
    text = packed(parts) + "return %y\n"
    graph = lowered(text)
    assert bytes_loaded(graph) == 1
    assert not any(isinstance(s, Load) and s.mask is not None for k in kernels(graph) for s in statements_of(k))
    assert bytes_loaded(lowered(text, unrolled=False)) == parts
    rng = np.random.default_rng(0)
    given = [rng.integers(-8, 8, 24).astype(np.float32), rng.integers(0, 256, (3, 24 // parts)).astype(np.uint8)]
    weights = np.stack([given[1] >> n * (8 // parts) & 2 ** (8 // parts) - 1 for n in range(parts)], -1).reshape(3, 24)
    (found,) = interpret(graph, given)
    np.testing.assert_array_equal(found, (weights * given[0]).sum(1))


@pytest.mark.parametrize(
    "text",
    [
        packed(8) + "return %y\n",  # more than are written out
        packed(2, device="") + "return %y\n",  # a CPU's vectors would be taken apart
        packed(2) + "return %top\n",  # no sum
    ],
)
def test_others_stay(text: str) -> None:
    assert lowered(text) == lowered(text, unrolled=False)
