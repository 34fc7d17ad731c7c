"""What the machine code of kernels takes for granted of memory."""

from __future__ import annotations

import pytest

from codegen.runtime.required_cubins import required_cubins
from stagewire.graph import Ref
from stagewire.program import Allocate, CallExtern, KernelInfo, Launch, MakeView, Unit
from stagewire.types import TensorType


def aligned(made: TensorType | None, offset: int) -> list[bool]:
    """Whether a kernel takes a result of a library, and a part of it from an element on, for aligned."""
    type_ = TensorType("bfloat16", (64, 8), (8, 1), device="cuda:0")
    part = TensorType("bfloat16", (8, 8), (8, 1), offset, device="cuda:0")
    unit = Unit(
        target="triton", source="", kernels=(KernelInfo("add", ("made", "part", "out"), grid=(1,)),), inputs=("x",),
        input_types=(type_,), outputs=(Ref("out"),),
        instructions=(
            CallExtern("aten.mish.default", (Ref("x"),), {}, ("made",), () if made is None else (made,)),
            MakeView("part", "made", part),
            Allocate("out", type_),
            Launch("add", ("x", "part", "out") if made is None else ("made", "part", "out")),
        ),
    )  # fmt: skip
    (one,) = required_cubins(unit)
    return [place in one.aligned for place in range(3)]


@pytest.mark.parametrize(("offset", "is_aligned"), [(0, True), (16, True), (4, False)])
def test_results_of_libraries_are_aligned(offset: int, is_aligned: bool) -> None:
    """The executor sees to it where it knows their types."""
    type_ = TensorType("bfloat16", (64, 8), (8, 1), device="cuda:0")
    assert aligned(type_, offset) == [True, is_aligned, True]
    assert aligned(None, offset) == [True, False, True]
