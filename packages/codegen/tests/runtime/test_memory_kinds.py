"""Where buffers live: what keeps the arena of a GPU beside the largest memory lies elsewhere."""

from __future__ import annotations

import pytest

from codegen.runtime.memory_kinds import plan_memory
from stagewire.graph import Ref
from stagewire.program import Allocate, CallExtern, Instruction, Launch, Unit
from stagewire.types import TensorType


def kinds(device: str, late: int) -> dict[str, str]:
    """How buffers get their memory where so many small ones are read when two large ones are there, and one before."""
    small, large = (TensorType("float32", (n, n), (n, 1), device=device) for n in (16, 2048))
    names = tuple(f"late{number}" for number in range(late))
    steps: tuple[Instruction, ...] = (
        Allocate("early", small),
        Launch("make", ("x", "early")),
        Launch("spread", ("early", "w")),
        *(CallExtern("aten.mm.default", (Ref("x"), Ref("x")), {}, (name,), (small,)) for name in names),
        CallExtern("aten.mm.default", (Ref("w"), Ref("w")), {}, ("product",), (large,)),
        Allocate("result", large),
        Launch("join", ("product", *names, "result")),
    )
    unit = Unit(
        target="triton", source="", kernels=(), inputs=("x", "w"), input_types=(small, large),
        outputs=(Ref("result"),), instructions=steps,
    )  # fmt: skip
    return {name: home.kind for name, home in plan_memory(unit).of.items()}


@pytest.mark.parametrize(
    ("device", "late", "kind"), [("cuda:0", 1, "fresh"), ("cuda:0", 3, "arena"), ("cpu", 1, "arena")]
)
def test_a_small_buffer_does_not_keep_the_arena_beside_the_largest_memory(device: str, late: int, kind: str) -> None:
    """But where there are several, the arena stays as it is."""
    found = kinds(device, late)
    assert found["early"] == "arena"
    assert {found[f"late{number}"] for number in range(late)} == {kind}


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_numbers_on_the_cpu_that_kernels_of_a_gpu_read_have_places_of_their_own(device: str) -> None:
    """But those that a call or the caller sees, and vectors, are tensors."""
    vector, number = TensorType("float32", (4,), (1,), device=device), TensorType("float64", (), ())
    steps: tuple[Instruction, ...] = (
        Allocate("rate", number),
        Allocate("shown", number),
        Allocate("called", number),
        Allocate("beside", TensorType("float64", (2,), (1,))),
        Launch("host", ("step", "rate", "shown", "called", "beside")),
        CallExtern("aten.neg.default", (Ref("called"),), {}, ("negative",), (number,)),
        Allocate("later", number, "rate"),
        Allocate("y", vector),
        Launch("kernel", ("x", "later", "shown", "beside", "negative", "y")),
    )
    unit = Unit(
        target="triton", source="", kernels=(), inputs=("x", "step"), input_types=(vector, number),
        outputs=(Ref("y"), Ref("shown")), instructions=steps,
    )  # fmt: skip
    found = {name: home.kind for name, home in plan_memory(unit).of.items()}
    assert (found["rate"], found["later"]) == (("number", "number") if device == "cuda:0" else ("arena", "arena"))
    assert {found["shown"], found["called"]} == {"fresh"}
    assert found["beside"] == ("fresh" if device == "cuda:0" else "arena")
