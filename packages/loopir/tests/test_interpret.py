"""The reference interpreter, against numpy written by hand; what it refuses."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from loopir.builder import record
from loopir.errors import NotInterpretable
from loopir.interpret import Memory, interpret
from loopir.schedule import freeze_kernel
from loopir.testing.externs import EXTERNS
from loopir.testing.samples import SAMPLES
from stagewire.expr import symbol
from stagewire.loop import Buffer, Loop, LoopGraph
from stagewire.types import TensorType, contiguous
from stagewire.verify import verify


def inputs_of(loop: Loop) -> list[np.ndarray]:
    rng, arrays = np.random.default_rng(0), []
    for bound in loop.binding.inputs:
        shape = tuple(int(n) for n in bound.type.shape)  # type: ignore[arg-type]
        if bound.type.dtype == "int64":
            arrays.append(rng.integers(-7, 7, shape))
        elif bound.type.dtype == "bfloat16":
            arrays.append(rng.integers(-9, 9, shape).astype(np.float32))
        else:
            arrays.append(rng.standard_normal(shape).astype(np.float32))
    return arrays


def gelu(a: np.ndarray) -> np.ndarray:
    return (0.5 * a * (1 + np.vectorize(math.erf)(a / math.sqrt(2)))).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    rstd = 1 / np.sqrt(var + 1e-5)
    return [(x - mean) * rstd * w + b, mean, rstd]


def scatter(token: np.ndarray, g: np.ndarray) -> np.ndarray:
    table = np.zeros((50, 24), np.float32)
    np.add.at(table, token, g)
    return table


MEANINGS = {
    "pointwise_chain": lambda x, b: [gelu(x + b), x > 0],
    "softmax": lambda x: [softmax(x)],
    "softmax_through_memory": lambda x: [softmax(x)],
    "layer_norm": layer_norm,
    "column_sum": lambda g: [g.sum(0)],
    "embedding": lambda token, weight, position: [weight[token] + position],
    "concatenation": lambda a, b: [np.concatenate([-a, b], 1)],
    "transpose_add": lambda x, y: [x + y.T],
    "full_reduction": lambda x: [x.mean()],
    "argmax": lambda x: [x.argmax(1), x.max(1)],
    "embedding_backward": lambda token, g: [scatter(token, g)],
    "pad_half": lambda x: [np.pad(x, ((2, 2), (0, 0)), constant_values=1.0) * 3],
    "scanned_rows": lambda x: [np.cumsum(x * 2, 1) + 1],
    "scanned_columns": lambda x: [(top := np.maximum.accumulate(x, 0)), (top - x).sum(0)],
    "matmul_relu": lambda a, b: [np.maximum(a @ b, 0)],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_mean_what_they_say(name: str) -> None:
    loop = SAMPLES[name]()
    verify(loop)
    inputs = inputs_of(loop)
    before = [x.copy() for x in inputs]
    for have, want in zip(interpret(loop.forward, inputs, EXTERNS), MEANINGS[name](*inputs), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
    for x, y in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_missing_extern_is_named() -> None:
    loop = SAMPLES["matmul_relu"]()
    with pytest.raises(NotInterpretable, match=r"no function for the extern aten.mm.default"):
        interpret(loop.forward, inputs_of(loop), {})


def graph_of(buffers: list[Buffer], body: object, shape: tuple[int, ...]) -> LoopGraph:
    types = {buffer.name: buffer.type for buffer in buffers}
    nest = record("k", types, shape, body)  # type: ignore[arg-type]
    kernel = freeze_kernel(nest, {buffer.name: buffer for buffer in buffers}, "kernel0")
    names = tuple(buffer.name for buffer in buffers if buffer.role == "input")
    return LoopGraph(buffers=tuple(buffers), inputs=names, outputs=(), steps=(kernel,))


def test_an_access_outside_its_buffer_is_found() -> None:
    buffers = [Buffer("x", contiguous("float32", (4,)), "input"), Buffer("y", contiguous("float32", (8,)), "kernel")]
    graph = graph_of(buffers, lambda ops, i: ops.store("y", (i,), ops.load("x", i)), (8,))
    with pytest.raises(NotInterpretable, match=r"kernel0 touches element 0\.\.7 of x, which has 4"):
        interpret(graph, [np.zeros(4, np.float32)])


def test_freed_memory_is_gone() -> None:
    memory = Memory((Buffer("x", contiguous("float32", (4,)), "input"),), {})
    memory.set("x", np.ones(4, np.float32))
    memory.free("x")
    with pytest.raises(NotInterpretable, match="not allocated yet, or freed"):
        memory.get("x")


def test_a_reused_buffer_lies_in_the_memory_of_the_old() -> None:
    old = Buffer("a", contiguous("float32", (4,)), "kernel")
    new = Buffer("b", contiguous("int32", (4,)), "kernel", reuse="a")
    memory = Memory((old, new), {})
    memory.set("a", np.array([1, 2, 3, 4], np.float32))
    memory.allocate("b")
    np.testing.assert_array_equal(memory.get("b"), np.array([1, 2, 3, 4], np.float32).view(np.int32))


def test_symbolic_sizes() -> None:
    n = symbol("n")
    buffers = [
        Buffer("x", TensorType("float32", (n, 3), (3, 1)), "input"),
        Buffer("y", TensorType("float32", (3,), (1,)), "kernel"),
    ]

    def body(ops, j):  # type: ignore[no-untyped-def]
        with ops.over(n) as (i,):
            total = ops.reduce("sum", ops.load("x", i, j))
        ops.store("y", (j,), total)

    graph = msgspec.structs.replace(graph_of(buffers, body, (3,)), outputs=(*SAMPLES["softmax"]().forward.outputs,))
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    (found,) = interpret(graph, [x], symbols={"n": 5})
    np.testing.assert_array_equal(found, x.sum(0))


def test_externs_may_be_found_as_they_are_asked_for() -> None:
    """A mapping of length 0 is one, too."""

    class Lazy(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return EXTERNS[name]

        def __len__(self) -> int:
            return 0

        def __iter__(self) -> Iterator[str]:
            return iter(())

    loop = SAMPLES["matmul_relu"]()
    inputs = inputs_of(loop)
    for have, want in zip(interpret(loop.forward, inputs, Lazy()), MEANINGS["matmul_relu"](*inputs), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


def test_a_missing_numpy_is_a_coded_error() -> None:
    program = "import sys; sys.modules['numpy'] = None; import loopir.interpret"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "LI004: the reference meaning is computed by numpy" in done.stderr
    assert "stagefold-loopir[testing]" in done.stderr
