"""Runs that raise: before an input is written they leave it as it was, afterwards they say so and are not repeated."""

import pytest
import torch

from codegen import Options, load
from codegen.errors import IndexOutOfRange, OperatorFailed
from codegen.stage import emit
from stagewire.errors import PartlyDone
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Store,
    Term,
    ValueAtom,
)
from stagewire.program import Launch
from stagewire.types import contiguous

EXECUTORS = ("fast", "reference")
LONG = torch.eye(5)
I = Index(0, (Term(1, AxisAtom("i")),))


def add_one(size: int = 16) -> Kernel:
    """y = x + 1, in the memory of x."""
    body = (Load("v", "x", I, "float32"), Compute("w", "add", (Ref("v"), 1.0), "float32"), Store("y", I, Ref("w")))
    return Kernel("add_one", (Axis("i", size),), (Section((), body),))


def rows(size: int) -> Kernel:
    """z = t[at]."""
    body = (Load("raw", "at", I, "int64"), Compute("row", "wrap_index", (Ref("raw"), size), "int64"),
            Load("v", "t", Index(0, (Term(1, ValueAtom("row")),)), "float32"), Store("z", I, Ref("v")))  # fmt: skip
    return Kernel("rows", (Axis("i", size),), (Section((), body),))


def graph_of(steps, buffers, inputs, outputs) -> LoopGraph:
    return LoopGraph(buffers=tuple(buffers), inputs=inputs, outputs=tuple(map(Ref, outputs)), steps=tuple(steps))


def updating(target: str, *operands: str, first: bool = False) -> LoopGraph:
    """x += 1, and a call that fails before or after it."""
    call = Extern(target, tuple(map(Ref, operands)), {}, ("c",))
    matrix = contiguous("float32", (4, 4))
    buffers = [Buffer("x", contiguous("float32", (16,)), "input"), Buffer("m", matrix, "input"),
               Buffer("long", contiguous("float32", (5, 5)), "input"), Buffer("c", matrix, "extern"),
               Buffer("y", contiguous("float32", (16,)), "kernel", reuse="x")]  # fmt: skip
    steps = (call, add_one()) if first else (add_one(), call)
    return graph_of(steps, buffers, ("x", "m", "long"), ("y", "c"))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_operator_that_raises_before_the_write(executor, directory):
    run = load(emit(updating("aten.cholesky.default", "m", first=True), Options()), directory, executor=executor)
    x = torch.zeros(16)
    with pytest.raises(RuntimeError, match="positive-definite"):
        run(x, -torch.eye(4), LONG)
    assert not x.any()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_operator_that_raises_after_the_write(executor, directory):
    run = load(emit(updating("aten.cholesky.default", "m"), Options()), directory, executor=executor)
    x = torch.zeros(16)
    with pytest.raises(PartlyDone) as caught:
        run(x, -torch.eye(4), LONG)
    assert "positive-definite" in str(caught.value.error)
    assert x.tolist() == [1.0] * 16, "once, and not again by another executor"
    assert run(x, torch.eye(4), LONG)[1].equal(torch.eye(4))


def test_an_operator_of_the_c_interface_that_fails_after_the_write(directory):
    """A product of matrices that do not fit."""
    run = load(emit(updating("aten.mm.default", "m", "long"), Options()), directory)
    x = torch.zeros(16)
    with pytest.raises(PartlyDone) as caught:
        run(x, torch.eye(4), LONG)
    assert isinstance(caught.value.error, OperatorFailed)
    assert isinstance(caught.value.error, RuntimeError)
    assert x.tolist() == [1.0] * 16


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_interrupt_is_no_error(executor, directory):
    run = load(emit(updating("mylib.stop.default", "m"), Options()), directory, executor=executor)
    with pytest.raises(KeyboardInterrupt):
        run(torch.zeros(16), torch.eye(4), LONG)


@pytest.fixture(autouse=True)
def stopping():
    library = torch.library.Library("mylib", "FRAGMENT")
    library.define("stop(Tensor x) -> Tensor")

    def stop(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    library.impl("stop", stop, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_that_checks_does_not_share_its_function_with_one_that_writes_an_input(threads, directory):
    """What a function reports is seen when all of it has run."""
    size = 4096
    type_ = contiguous("float32", (size,))
    buffers = [Buffer("x", type_, "input"), Buffer("t", type_, "input"),
               Buffer("at", contiguous("int64", (size,)), "input"), Buffer("z", type_, "kernel"),
               Buffer("y", type_, "kernel", reuse="x")]  # fmt: skip
    graph = graph_of((rows(size), add_one(size)), buffers, ("x", "t", "at"), ("y", "z"))
    unit = emit(graph, Options(parallel_threshold=1000))
    assert sum(isinstance(one, Launch) for one in unit.instructions) == 2
    run = load(unit, directory)
    x, at = torch.zeros(size), torch.arange(size)
    at[size - 1] = size
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(IndexOutOfRange):
            run(x, torch.ones(size), at)
    finally:
        torch.set_num_threads(before)
    assert not x.any()
