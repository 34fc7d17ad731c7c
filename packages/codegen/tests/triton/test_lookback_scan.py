"""Scans of few long rows, of which several programs share each."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.interpreter import retuned
from codegen.triton.plan import plan
from codegen.triton.unit import with_lookback
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Free, Index, Kernel, Load, LoopGraph, Scan, Section, Store, Term
from stagewire.parser import parse_document
from stagewire.types import contiguous


@pytest.fixture(autouse=True)
def short_rows(monkeypatch):
    """Parts of eight elements, of rows of two parts or more."""
    retuned(monkeypatch, chained_row=9, chain_tile=8)


def scanned(rows: int, size: int, dtype: str, kinds: tuple[str, ...]) -> LoopGraph:
    """Scans along rows: two of what is read, others of what the first gives."""
    whole = Index(0, (Term(size, AxisAtom("i")), Term(1, AxisAtom("j"))))
    scans = [Scan(f"s{n}", kind, Ref("x" if n < 2 else "s0"), dtype) for n, kind in enumerate(kinds)]
    stores = [Store(f"y{n}", whole, Ref(scan.result)) for n, scan in enumerate(scans)]
    body = (Load("x", "x", whole, dtype), *scans, *stores)
    kernel = Kernel("k", (Axis("i", rows),), (Section((Axis("j", size),), body),))
    shape = contiguous(dtype, (rows, size))
    buffers = (Buffer("x", shape, "input"), *(Buffer(store.buffer, shape, "kernel") for store in stores))
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=tuple(Ref(s.buffer) for s in stores), steps=(kernel,))


def run(graph: LoopGraph, x: torch.Tensor, device: str, directory) -> list[torch.Tensor]:
    buffers = tuple(replace(buffer, type=replace(buffer.type, device=device)) for buffer in graph.buffers)
    unit = emit(replace(graph, buffers=buffers), Options(target="triton"))
    return [found.cpu() for found in load(unit, directory)(x.to(device))]


EAGER = {
    "sum": lambda x: x.cumsum(1, dtype=x.dtype),
    "prod": lambda x: x.cumprod(1, dtype=x.dtype),
    "max": lambda x: x.cummax(1)[0],
    "min": lambda x: x.cummin(1)[0],
    "logaddexp": lambda x: x.logcumsumexp(1),
}


DTYPES = ("float32", "float64", "bfloat16", "int64", "int32", "int16")
SHAPES = [((1, 300), "float32"), ((1, 300), "int64"), *product([(1, 9), (3, 24), (5, 21)], DTYPES)]
"""A row of 38 parts, more than a program looks back at once, and rows of few."""


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_parts_go_on_from_each_other(shape, dtype, device, directory):
    """The operands make sums that are exact in any order, and products that stay finite."""
    kinds = {"f": ("sum", "prod", "max", "logaddexp", "min"), "i": ("sum", "max")}[dtype.lstrip("b")[0]]
    if dtype == "float64":
        kinds = ("sum", "prod")  # Triton's interpreter has no maximum of these
    x = (torch.randint(-9, 9, shape) / (1 if "int" in dtype else 8)).to(getattr(torch, dtype))
    graph = scanned(*shape, dtype, kinds)
    assert plan(graph.steps[0]).chained
    wide = x.float() if dtype == "bfloat16" else x
    first = EAGER["sum"](wide).to(x.dtype).to(wide.dtype)
    loose = {"rtol": 2e-2 if dtype == "bfloat16" else 1e-4, "atol": 1e-4}
    for kind, operand, found in zip(
        kinds, (wide, wide, first, first, first), run(graph, x, device, directory), strict=False
    ):
        torch.testing.assert_close(found, EAGER[kind](operand).to(found.dtype), **loose)


@settings(max_examples=12, deadline=None)
@given(place=st.integers(0, 36), value=st.sampled_from((torch.inf, -torch.inf, torch.nan)))
def test_what_is_not_finite_stays_in_what_comes_behind(place, value, device, directory):
    x = torch.randn(2, 37)
    x[0, place] = value
    for kind, found in zip(EAGER, run(scanned(2, 37, "float32", tuple(EAGER)[:2]), x, device, directory), strict=False):
        torch.testing.assert_close(found, EAGER[kind](x), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_memory_is_cleared_before_each_launch_and_freed_behind():
    graph = with_lookback(scanned(3, 64, "float64", ("sum", "max")))
    assert [type(step) for step in graph.steps] == [Kernel, Kernel, Free]
    clear, kernel, free = graph.steps
    (memory,) = [buffer for buffer in graph.buffers if buffer.name == free.buffer]
    assert memory.type.shape == (1 + 3 * 16 * 4,)  # a counter; of each part of each row, two values of two words
    assert clear.axes[0].size == memory.type.shape[0]
    assert kernel.name == "k"


OPEN = """
  loop 2 {
    binding { inputs = () outputs = () symbols { Symbol(name="n", source=None, hint=64, lower=0, upper=None) } }
    forward {
      buffers {
        %x: f32[3, n] = input
        %y: f32[3, n] = kernel
      }
      inputs = ("x",)
      outputs = (%y,)
      steps {
        kernel sums for i in 3 {
          section for j in n {
            %v: f32 = load %x[{n}*i + j]
            %s: f32 = scan sum %v
            store %y[{n}*i + j] = %s
          }
        }
      }
    }
  }"""


@pytest.mark.usefixtures("counting_interpreter")
@pytest.mark.parametrize("executor", ["fast", "reference"])
def test_rows_of_open_length(executor, device, directory):
    graph = parse_document(OPEN).forward
    buffers = tuple(replace(buffer, type=replace(buffer.type, device=device)) for buffer in graph.buffers)
    unit = emit(replace(graph, buffers=buffers), Options(target="triton"), {"n": 64})
    call = load(unit, directory, executor=executor)
    for n in (5, 9, 64, 131, 0):
        x = torch.randn(3, n)
        (found,) = call(x.to(device))
        torch.testing.assert_close(found.cpu(), x.cumsum(1), rtol=1e-4, atol=1e-4)
