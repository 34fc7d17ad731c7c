"""Prims that the generated graphs do not draw (inexact or irregular): lowered, interpreted, held against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from loopir.errors import UnsupportedPrim
from loopir.interpret import interpret
from loopir.numpy_ops import rounded
from loopir.pipeline import PASSES, UNFUSED
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.graphs import document
from loopir.testing.prim_meaning import prim_meaning
from stagewire.graph import Graph, Ref, Value
from stagewire.loop_ops import CHECKS, OPS, PREDICATES, arity
from stagewire.parser import parse_graph
from stagewire.types import TensorType
from stagewire.verify import verify

POSITIVE = frozenset(["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "acosh", "lgamma", "digamma", "pow"])
UNIT = frozenset(["asin", "acos", "atanh", "erfinv"])
INTEGER = frozenset(["shift_left", "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"])


def array_for(value: Value, seed: int, low: float, high: float) -> np.ndarray:
    assert isinstance(value.type, TensorType)
    shape = tuple(int(n) for n in value.type.shape)  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    if value.type.dtype in ("int64", "int32", "bool"):
        return rng.integers(0, 2, shape).astype(value.type.dtype)
    return rounded(rng.uniform(low, high, shape), value.type.dtype)


def check(graph: Graph, low: float = -2.0, high: float = 2.0, rtol: float = 1e-5) -> None:
    inputs = [array_for(value, n, low, high) for n, value in enumerate(graph.inputs)]
    expected = prim_meaning(graph, inputs, EXTERNS)
    for passes in (PASSES, UNFUSED):
        loop = LoopIR().run(document(graph), Options(passes=passes))
        verify(loop)
        for have, want in zip(interpret(loop.forward, inputs, EXTERNS), expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=rtol, atol=1e-6)  # type: ignore[call-overload]


@pytest.mark.parametrize("op", [op for op in OPS if op not in ("convert", "bitcast", "where", "philox", *CHECKS)])
def test_elementwise(op: str) -> None:
    dtype = "int64" if op in INTEGER else "f32"
    names = [f"%x{n}" for n in range(arity(op))]
    declared = "".join(f"input {name}: {dtype.replace('int64', 'i64')}[3, 5]\n" for name in names)
    result = "b8" if op in PREDICATES else dtype.replace("int64", "i64")
    low, high = (0.5, 3.0) if op in POSITIVE else (-0.9, 0.9) if op in UNIT else (-2.0, 2.0)
    low, high = (1.1, 3.0) if op == "acosh" else (low, high)
    check(parse_graph(f"{declared}%y: {result}[3, 5] = prims.{op}({', '.join(names)})\nreturn %y\n"), low, high)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.7])
def test_powers_with_constant_exponents(exponent: float) -> None:
    check(parse_graph(f"input %x: f32[7]\n%y: f32[7] = prims.pow(%x, {exponent})\nreturn %y\n"), 0.5, 2.0)


HEADER = "input %x: f32[3, 4]\n"
TEXTS = {
    "prod": HEADER + "%y: f32[4] = prims.prod(%x, [0])\nreturn %y\n",
    "any": HEADER + "%p: b8[3, 4] = prims.gt(%x, 0.5)\n%y: b8[3] = prims.any(%p, [1])\nreturn %y\n",
    "all": HEADER + "%p: b8[3, 4] = prims.gt(%x, -1.5)\n%y: b8[] = prims.all(%p, [0, 1])\nreturn %y\n",
    "var_mean": HEADER + "%v: f32[3], %m: f32[3] = prims.var_mean(%x, [1], 1)\nreturn %v, %m\n",
    "var_mean of one": HEADER + "%v: f32[3, 4], %m: f32[3, 4] = prims.var_mean(%x, [], 0)\nreturn %m\n",
    "argmax of all": HEADER + "%y: i64[] = prims.argmax(%x, None)\nreturn %y\n",
    "cumsum called": HEADER + "%y: f32[3, 4] = prims.cumsum(%x, 1)\n%z: f32[3, 4] = prims.add(%y, 1.0)\nreturn %z\n",
    "cumprod called": HEADER + "%y: f32[3, 4] = prims.cumprod(%x, 0)\nreturn %y\n",
    "as_strided": HEADER + "%y: f32[2, 3] = prims.as_strided(%x, [2, 3], [5, 1], 2)\nreturn %y\n",
    "overlapping as_strided": HEADER + "%y: f32[5, 4] = prims.as_strided(%x, [5, 4], [2, 1], 0)\n"
    "%z: f32[5, 4] = prims.exp(%y)\nreturn %z\n",
    "bitcast": HEADER + "%y: i32[3, 4] = prims.bitcast(%x, dtype(int32))\nreturn %y\n",
    "bitcast of half": "input %x: bf16[5]\n%y: i16[5] = prims.bitcast(%x, dtype(int16))\nreturn %y\n",
    "scatter": HEADER + "input %i: i64[2, 4]\ninput %s: f32[2, 4]\n"
    "%y: f32[3, 4] = prims.scatter_add(%x, 0, %i, %s)\nreturn %y\n",
    "scatter of a number": HEADER + "input %i: i64[1, 4]\n%y: f32[3, 4] = prims.scatter(%x, 0, %i, 7.0)\nreturn %y\n",
    "index_put": HEADER + "input %i: i64[1]\ninput %s: f32[1, 4]\n"
    "%y: f32[3, 4] = prims.index_put(%x, [%i, None], %s, False, True)\nreturn %y\n",
    "half in float32": "input %x: bf16[6, 9]\n%w: f32[6, 9] = prims.convert_element_type(%x, dtype(float32))\n"
    "%y: f32[6, 9] = prims.exp(%w)\n%z: bf16[6, 9] = prims.convert_element_type(%y, dtype(bfloat16))\n"
    "%s: f32[6] = prims.sum(%y, [1])\nreturn %z, %s\n",
    "sum of half": "input %x: bf16[6, 300]\n%y: bf16[6] = prims.sum(%x, [1])\nreturn %y\n",
    "iota in halves": "%y: f32[5] = prims.iota(5, 0.25, 0.5, dtype(float32))\nreturn %y\n",
    "full of inf": "%y: f32[2] = prims.full([2], inf, dtype(float32))\nreturn %y\n",
    "rank 0": "input %x: f32[]\n%y: f32[] = prims.sum(%x, [])\n%z: f32[] = prims.neg(%y)\nreturn %z\n",
    "an output twice": HEADER + "%y: f32[3, 4] = prims.neg(%x)\nreturn %y, %y, 3\n",
    "an input returned": HEADER + "%y: f32[4, 3] = prims.permute(%x, [1, 0])\nreturn %x, %y\n",
    "expanded output": HEADER + "%s: f32[3] = prims.sum(%x, [1])\n"
    "%y: f32[3, 4]{1, 0} = prims.broadcast_in_dim(%s, [3, 4], [0])\nreturn %y\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_irregular(text: str) -> None:
    graph = parse_graph(text)
    literal = [n for n, arg in enumerate(graph.outputs) if not isinstance(arg, Ref)]
    check(graph, rtol=1e-2 if "bf16" in text else 1e-5) if not literal else check_outputs(graph)


def check_outputs(graph: Graph) -> None:
    """Outputs that are literals come back as they are."""
    inputs = [array_for(value, n, -2, 2) for n, value in enumerate(graph.inputs)]
    loop = LoopIR().run(document(graph))
    verify(loop)
    found, again, literal = interpret(loop.forward, inputs)
    np.testing.assert_array_equal(found, again)  # type: ignore[call-overload]
    assert literal == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%y: f32[3, 4] = prims.add(%x)", "1 operands for an op of 2"),
        ('%y: f32[3, 4] = prims.neg("a")', "'a' is neither a tensor nor a number"),
        ('%y: f32[3] = prims.sum(%x, ["a"])', "not a list of integers"),
        ("%y: f32[3, 4] = prims.cat(%x, 0)", "not a list"),
        ("%y: i64[3, 4] = prims.bitcast(%x, dtype(int64))", "float32 and int64 differ in size"),
    ],
)
def test_malformed_calls_are_refused(line: str, reason: str) -> None:
    with pytest.raises(UnsupportedPrim, match=reason):
        LoopIR().run(document(parse_graph(f"{HEADER}{line}\nreturn %y\n")))
