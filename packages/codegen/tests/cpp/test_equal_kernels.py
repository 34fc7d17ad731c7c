"""Kernels that are equal up to the names of buffers are written once, and no others."""

from unittest import mock

import pytest
import torch

from codegen import Options, load
from codegen.cpp import emit as emitter
from codegen.stage import emit
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Index, Kernel, Load, LoopGraph, Section, Store, Term
from stagewire.types import contiguous

AT = Index(0, (Term(1, AxisAtom("i")),))


def scaled(number, by=2.0, dtype="float32", size=8, other=None):
    """A kernel that computes x * by + other, x if there is no other; and its buffers."""
    x, y = f"x{number}", f"y{number}"
    body = (
        Load("v", x, AT, dtype), Load("w", other or x, AT, dtype), Compute("t", "mul", (Ref("v"), by), dtype),
        Compute("r", "add", (Ref("t"), Ref("w")), dtype), Store(y, AT, Ref("r")),
    )  # fmt: skip
    kernel = Kernel(f"kernel{number}", (Axis("i", size),), (Section((), body),), origins=(y,))
    return kernel, [Buffer(x, contiguous(dtype, (size,)), "input"), Buffer(y, contiguous(dtype, (size,)), "kernel")]


def graph_of(*made):
    buffers = [buffer for _, found in made for buffer in found]
    inputs, outputs = ([one for one in buffers if (one.role == "input") == is_input] for is_input in (True, False))
    return LoopGraph(
        buffers=tuple(buffers), inputs=tuple(one.name for one in inputs),
        outputs=tuple(Ref(one.name) for one in outputs), steps=tuple(kernel for kernel, _ in made),
    )  # fmt: skip


def written(graph, directory):
    """How often kernels were written, and what they give for inputs of ones, counted up."""
    with mock.patch.object(emitter, "_write", wraps=emitter._write) as write:
        unit = emit(graph, Options())
    inputs = [torch.full(one.type.shape, n + 1.0, dtype=getattr(torch, one.type.dtype))
              for n, one in enumerate(b for b in graph.buffers if b.role == "input")]  # fmt: skip
    return write.call_count, [one.tolist() for one in load(unit, directory)(*inputs)]


def test_equal_kernels_are_written_once_and_each_has_its_own_buffers(directory):
    count, results = written(graph_of(*(scaled(number) for number in range(5))), directory)
    assert count == 1
    assert results == [[3.0 * (number + 1)] * 8 for number in range(5)]


@pytest.mark.parametrize(
    "change", [{"by": 3.0}, {"dtype": "float64"}, {"size": 9}, {"other": "x0"}], ids=lambda change: next(iter(change))
)
def test_others_are_written_apart(change, directory):
    count, results = written(graph_of(scaled(0), scaled(1, **change)), directory)
    assert count == 2
    x = 2.0
    expected = x * change.get("by", 2.0) + (1.0 if "other" in change else x)
    assert results == [[3.0] * 8, [expected] * change.get("size", 8)]


def test_memory_that_is_shared_is_told_from_memory_that_is_not(directory):
    """The second kernel writes where its input is: no promise to the compiler that these lie apart."""
    graph = graph_of(scaled(0), scaled(1))
    first, second = graph.buffers[:2], graph.buffers[2:]
    taken = Buffer(second[1].name, second[1].type, "kernel", reuse=second[0].name)
    graph = LoopGraph(buffers=(*first, second[0], taken), inputs=graph.inputs, outputs=graph.outputs, steps=graph.steps)
    count, results = written(graph, directory)
    assert count == 2
    assert results == [[3.0] * 8, [6.0] * 8]
