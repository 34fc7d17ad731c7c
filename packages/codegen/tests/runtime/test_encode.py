"""A unit as words: when the arena of a GPU is taken and given back."""

from __future__ import annotations

from codegen.runtime.arguments import closure
from codegen.runtime.encode import OPS, encode
from stagewire.graph import Ref
from stagewire.program import Allocate, CallExtern, Instruction, Launch, Release, Unit
from stagewire.types import TensorType


def operations(device: str) -> list[str]:
    """What is done with a large product, then with a small buffer, then with large products again."""
    small, large = (TensorType("float32", (n, n), (n, 1), device=device) for n in (16, 2048))
    steps: tuple[Instruction, ...] = (
        CallExtern("aten.mm.default", (Ref("w"), Ref("w")), {}, ("v",), (large,)),
        Allocate("a", small),
        Launch("make", ("x", "a")),
        Launch("spread", ("a", "w")),
        Release("a"),
        CallExtern("aten.mm.default", (Ref("v"), Ref("w")), {}, ("y",), (large,)),
        CallExtern("aten.mm.default", (Ref("y"), Ref("w")), {}, ("z",), (large,)),
    )
    unit = Unit(
        target="triton", source="", kernels=(), inputs=("x", "w"), input_types=(small, large), outputs=(Ref("z"),),
        instructions=steps,
    )  # fmt: skip
    found = encode(unit, lambda kernel: ("LAUNCH", (0,)))
    start, end = found.head[4:6]
    names = {number: name for name, number in OPS.items()}
    made = []
    while start < end:
        made.append(names[found.words[start]])
        start += 2 + found.words[start + 1]
    return made


def test_the_arena_of_a_gpu_is_there_from_its_first_use_to_its_last() -> None:
    product = ["FRESH", "MM"]
    expected = [*product, "TAKE", "LAUNCH", "LAUNCH", "GIVE_BACK", *product, *product]
    assert [name for name in operations("cuda:0") if name != "DROP"] == expected


def test_the_arena_of_a_cpu_stays() -> None:
    assert not {"TAKE", "GIVE_BACK"} & set(operations("cpu"))


def test_names_of_arguments_are_no_python_text() -> None:
    """A document's keyword is handed on as it is, and is not run."""
    ran: list[str] = []
    odd = "b=1) if ran.append('x') else operator(t0, b"
    call = CallExtern("mylib.op.default", (Ref("x"),), {odd: Ref("y"), "if": 2, "plain": Ref("y")}, ("z",))
    run, names, _ = closure(call, lambda *args, **kwargs: (args, kwargs))
    assert run(1, 3) == ((1,), {odd: 3, "if": 2, "plain": 3})
    assert (names, ran) == (["x", "y"], [])
