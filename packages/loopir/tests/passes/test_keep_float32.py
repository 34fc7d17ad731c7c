"""keep_float32: what a kernel computes in float32 stays so until it is stored."""

from __future__ import annotations

import numpy as np

from loopir import LoopIR, Options
from loopir.interpret import interpret
from loopir.testing.graphs import document, kernels
from stagewire.loop import Compute, LoopGraph

CHAIN = """\
input %x: f16[64]
%a: f32[64] = prims.convert_element_type(%x, dtype(float32))
%b: f32[64] = prims.mul(%a, 3.0)
%c: f16[64] = prims.convert_element_type(%b, dtype(float16))
%d: f32[64] = prims.convert_element_type(%c, dtype(float32))
%e: f32[64] = prims.sub(%d, %a)
%f: f16[64] = prims.convert_element_type(%e, dtype(float16))
"""


def lowered(text: str, numerics: str = "default") -> LoopGraph:
    return LoopIR().run(document(text), Options(numerics=numerics)).forward  # type: ignore[arg-type]


def conversions(graph: LoopGraph) -> int:
    statements = [s for kernel in kernels(graph) for section in kernel.sections for s in section.statements]
    return sum(isinstance(s, Compute) and s.op == "convert" for s in statements)


def test_rounding_between_operations_is_left_out() -> None:
    x = np.linspace(-3, 3, 64).astype(np.float16)
    wide = x.astype(np.float32)
    graph = lowered(CHAIN + "return %f\n")
    assert conversions(graph) == 2
    np.testing.assert_array_equal(interpret(graph, [x])[0], (wide * 3 - wide).astype(np.float16))  # type: ignore[call-overload]
    graph = lowered(CHAIN + "return %f\n", "eager")
    assert conversions(graph) == 4
    rounded = (wide * 3).astype(np.float16).astype(np.float32) - wide
    np.testing.assert_array_equal(interpret(graph, [x])[0], rounded.astype(np.float16))  # type: ignore[call-overload]


def test_what_is_stored_is_rounded() -> None:
    x = np.linspace(-3, 3, 64).astype(np.float16)
    wide = x.astype(np.float32)
    graph = lowered(CHAIN + "return %f, %c\n")
    assert conversions(graph) == 3
    _, stored = interpret(graph, [x])
    np.testing.assert_array_equal(stored, (wide * 3).astype(np.float16))  # type: ignore[call-overload]


def test_a_rounding_from_float64_stays() -> None:
    text = """\
input %x: f64[8]
%a: f16[8] = prims.convert_element_type(%x, dtype(float16))
%b: f32[8] = prims.convert_element_type(%a, dtype(float32))
%c: f32[8] = prims.exp(%b)
return %c
"""
    assert conversions(lowered(text)) == 2


SCALED = """\
input %x: f16[8, 64]
input %factor: f32[64]
input %y: f16[8, 64]
%a: f32[8, 64] = prims.convert_element_type(%x, dtype(float32))
%b: f32[8, 64] = prims.broadcast_in_dim(%factor, (8, 64), (1,))
%c: f32[8, 64] = prims.mul(%a, {factor})
%d: f16[8, 64] = prims.convert_element_type(%c, dtype(float16))
%e: f32[8, 64] = prims.convert_element_type(%d, dtype(float32))
%f: f32[8, 64] = prims.convert_element_type(%y, dtype(float32))
%g: f32[8, 64] = prims.add(%e, %f)
%h: f16[8, 64] = prims.convert_element_type(%g, dtype(float16))
return %h
"""


def test_an_element_scaled_by_its_channel_is_rounded_before_it_is_added() -> None:
    """Factors next to 1 leave half-precision numbers as they are, and sums in the middle of two go to the even one."""
    random = np.random.default_rng(0)
    x, y = (random.normal(0, 1, (8, 64)).astype(np.float16) for _ in range(2))
    factor = np.full(64, 1 / np.sqrt(np.float32(1 + 1e-5)), np.float32)
    graph = lowered(SCALED.format(factor="%b"))
    assert conversions(graph) == 5
    found = interpret(graph, [x, factor, y])[0]
    np.testing.assert_array_equal(found, (x.astype(np.float32) + y).astype(np.float16))  # type: ignore[call-overload]


def test_an_element_scaled_by_a_number_is_added_as_it_is() -> None:
    assert conversions(lowered(SCALED.format(factor="0.125"))) == 3


def test_a_short_integer_is_converted_once() -> None:
    text = """\
input %x: {dtype}[64]
%a: bf16[64] = prims.convert_element_type(%x, dtype(bfloat16))
%b: f32[64] = prims.convert_element_type(%a, dtype(float32))
return %b
"""
    assert conversions(lowered(text.format(dtype="u8"))) == conversions(lowered(text.format(dtype="i8"))) == 1
    assert conversions(lowered(text.format(dtype="i16"))) == 2
    x = np.arange(192, 256).astype(np.uint8)
    np.testing.assert_array_equal(interpret(lowered(text.format(dtype="u8")), [x])[0], x.astype(np.float32))


PRODUCT = """\
input %x: f32[{rows}, 64]
input %w: f16[32, 64]
%a: f16[{rows}, 64] = prims.convert_element_type(%x, dtype(float16))
%b: f32[{rows}, 64] = prims.convert_element_type(%a, dtype(float32))
%c: f32[{rows}, 32, 64] = prims.broadcast_in_dim(%b, ({rows}, 32, 64), (0, 2))
%d: f32[32, 64] = prims.convert_element_type(%w, dtype(float32))
%e: f32[{rows}, 32, 64] = prims.broadcast_in_dim(%d, ({rows}, 32, 64), (1, 2))
%f: f32[{rows}, 32, 64] = prims.mul(%c, %e)
%g: f32[{rows}, 32] = prims.sum(%f, (2,))
return %g
"""


def test_elements_of_matrices_that_are_multiplied_are_rounded() -> None:
    """Of several rows: a row alone is no operand of tensor cores."""
    assert conversions(lowered(PRODUCT.format(rows=4))) == 3
    assert conversions(lowered(PRODUCT.format(rows=1))) == 1
