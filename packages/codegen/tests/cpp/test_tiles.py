"""Transposed reads go through tiles that are turned in registers: the same elements, whatever the edges."""

import pytest
import torch

from codegen import Options, load
from codegen.stage import emit
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Index, Kernel, Load, LoopGraph, Section, Store, Term
from stagewire.types import contiguous


def turned(rows: int, columns: int, dtype: str, *, backward: bool = False) -> LoopGraph:
    """y[i, j] = x[j, i] + z[i, j]; `backward` reads the rows of x from the last to the first."""

    def at(constant: int, i: int, j: int) -> Index:
        return Index(constant, (Term(i, AxisAtom("i")), Term(j, AxisAtom("j"))))

    plain = at(0, columns, 1)
    x = at(rows * (columns - 1), 1, -rows) if backward else at(0, 1, rows)
    body = (Load("a", "x", x, dtype), Load("b", "z", plain, dtype), Compute("c", "add", (Ref("a"), Ref("b")), dtype),
            Store("y", plain, Ref("c")))  # fmt: skip
    kernel = Kernel("kernel", (Axis("i", rows), Axis("j", columns)), (Section((), body),))
    buffers = (Buffer("x", contiguous(dtype, (columns, rows)), "input"),
               Buffer("z", contiguous(dtype, (rows, columns)), "input"),
               Buffer("y", contiguous(dtype, (rows, columns)), "kernel"))  # fmt: skip
    return LoopGraph(buffers=buffers, inputs=("x", "z"), outputs=(Ref("y"),), steps=(kernel,))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "uint8", "int64"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (64, 128), (67, 13), (9, 130)])
def test_turned_reads(rows, columns, dtype, directory):
    kind = getattr(torch, dtype)
    x = torch.randint(0, 100, (columns, rows)).to(kind)
    z = torch.randint(0, 100, (rows, columns)).to(kind)
    for backward, expected in ((False, x.t() + z), (True, x.flip(0).t() + z)):
        unit = emit(turned(rows, columns, dtype, backward=backward), Options(parallel_threshold=1000))
        assert "sf_tile<" in unit.source
        (found,) = load(unit, directory)(x, z)
        assert torch.equal(found, expected)
