"""Each labelled constraint refuses an example: a printed document with one place changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import stagewire.verify
from stagewire import graph
from stagewire.errors import VerifyError
from stagewire.parser import parse_document
from stagewire.verify import faults, verify

DOCUMENTS = Path(__file__).parent.parent / "data" / "documents"


class Refusal(NamedTuple):
    """Change `old` to `new` in the printed document `kind`; the refusal has `label` and says `says`."""

    label: str
    kind: str
    old: str
    new: str
    says: str


CHOICE = "    choices {{\n      Choice(start={}, stop={}, alternatives=((),))\n    }}\n    outputs ="

TRAINED = "prim_trained"

ATTENTION = 'torch.ops.stagefold.flex_attention(0, 0, 0, 0, 0, ["{}"], 0, 0, '

REFUSALS = (
    # T: types and literals
    Refusal("T1", "prim", "%b: f32[2, 4] =", "%b: f32[2, 4]{1} =", "2 sizes but 1 strides"),
    Refusal("T1", "loop", "%q: f32[8, 16] =", "%q: f32[8, 16]{16, 1, 1} =", "2 sizes but 3 strides"),
    Refusal("T2", "prim", "%b: f32[2, 4] =", "%b: f32[2, -4]{4, 1} =", "-4 is negative"),
    Refusal("T2", "prim", "%b: f32[2, 4] =", "%b: f32[2, 4]{-4, 1} =", "-4 is negative"),
    Refusal("T2", "program", "%v: f32[16, 8]{1, 16}", "%v: f32[16, 8]{1, 16}+-1", "-1 is negative"),
    Refusal("T3", "grad", "%mask: b8[s0, 4] =", "%mask: b8[s1, 4] =", "undeclared symbols s1"),
    Refusal("T3", "prim", "[2, 4], [0])", "[s0, 4], [0])", "undeclared symbols s0"),
    Refusal("T3", "loop", "for i0 in 8 {", "for i0 in s0 {", "undeclared symbols s0"),
    Refusal("T3", "grad", "%mask: b8[s0, 4] =", '%mask: b8[Expr(text="s0 +"), 4]{4, 1} =', "outside the grammar"),
    Refusal("T3", "prim", "%b: f32[2, 4] =", "%b: f32[2**1000000000, 4]{4, 1} =", "outside the grammar"),
    Refusal("T4", "prim", "[1])", "[99999999999999999999])", "does not fit into 64 bits"),
    Refusal("T4", "capture", "1.5, alpha", 'float("inf"), alpha', "inf is written as NonFinite"),
    Refusal("T4", "capture", "1.5, alpha", 'complex(float("nan"), 0.0), alpha', "nan is written as NonFinite"),
    Refusal("T4", "prim", "dtype(float16)", "dtype(f16)", "'f16' is no dtype"),
    Refusal("T4", "prim", "dtype(float16)", '{"a": slice(None, float("inf"), None)}', "written as NonFinite"),
    Refusal("T4", "loop", "mul(%a, 2.0)", 'mul(%a, float("-inf"))', "-inf is written as NonFinite"),
    # G: graphs
    Refusal("G1", "prim", "%e: f32", "%b: f32", "%b is defined twice"),
    Refusal("G1", "grad", "input %w: f32[4, 4] grad", "input %x: f32[4, 4] grad", "%x is defined twice"),
    Refusal("G1", "prim", "%e: f32", '%"": f32', "empty name"),
    Refusal("G2", "prim", "prims.sub(%x, %b)", "prims.sub(%x, %h)", "%h is used before it is defined"),
    Refusal("G2", "capture", "alpha=2", "alpha=[1, %nothing]", "%nothing is used before it is defined"),
    Refusal("G3", "prim", "return %h", "return %j", "the output %j is not defined"),
    Refusal("G3", "capture", "(%y, None)", '({"a": %u}, None)', "the output %u is not defined"),
    Refusal("G4", "capture", "torch.add(", '""(', "the target is empty"),
    Refusal("G5", "prim", "prims.sub(", "sub(", "'sub' is none of this document"),
    Refusal("G5", "grad", "aten.gt.Scalar(", '"aten.gt Scalar"(', "is none of this document"),
    Refusal("G7", "capture", "alpha=2", '"alpha) if print() else f(x"=2', "is no name of an argument"),
    Refusal("G7", "capture", "alpha=2", '"lambda"=2', "'lambda' is no name of an argument"),
    Refusal("G7", "capture", "torch.add(", "torch.from_file(", "torch.from_file opens files"),
    Refusal("G7", "grad", "aten.gt.Scalar(", "aten.save.default(", "aten.save.default opens files"),
    Refusal("G8", "capture", "torch.add(", ATTENTION.format("[}"), "a function does not read"),
    Refusal("G8", "capture", "torch.add(", ATTENTION.format("return %none"), "in a function: G3: the output %none"),
    Refusal("G8", "capture", "torch.add(", ATTENTION.format("prim 3 {}"), "a function does not read"),
    Refusal(
        "G8", "capture", "torch.add(", ATTENTION.format(r"input %v: f32[2*n0]\nreturn %v"), "undeclared symbols n0"
    ),
    # C: captures
    Refusal("C1", "capture", "  %x: f32[s0, 16] = tensor x\n", "", "2 inputs, but the graph takes 3"),
    Refusal("C1", "capture", "%w: f32[8, 16] grad = parameter", "%w: f32[8, 16] = parameter", "is another value"),
    Refusal("C2", "capture", "= symbol type_of", "= tensor type_of", "an input of role 'tensor' has type"),
    Refusal("C2", "capture", "= tensor x", "= symbol x", "an input of role 'symbol' has type"),
    Refusal("C3", "capture", "source=self.depth", "source=self" + ".depth" * 70, "more than 64 steps"),
    Refusal("C4", "capture", "hint=4", "hint=1", "lower 2, hint 1, upper 64 are out of order"),
    Refusal("C4", "capture", "  symbols {\n", '  symbols {\n    Symbol(name="s0", source=None, hint=None)\n', "twice"),
    Refusal(
        "C4",
        "capture",
        "  symbols {\n",
        '  symbols {\n    Symbol(name="s1 or print()", source=None, hint=None)\n',
        "'s1 or print()' is no name of a symbol",
    ),
    Refusal("C5", "capture", "value=2)", "value=[%x])", "the literal refers to %x"),
    Refusal("C5", "capture", 'keys=("a", 1)', "keys=(%x,)", "the literal refers to %x"),
    Refusal("C6", "capture", "length=1", "length=-1", "the length -1 is negative"),
    Refusal("C6", "capture", "dict_value(options, 0)", "dict_value(options, -2)", "position -2 is negative"),
    Refusal("C7", "capture", "(%y, None)", "(%y, handle(group))", "the handle 'group' is held by a process"),
    Refusal("C7", "capture", "alpha=2", "alpha=handle(group)", "the handle 'group' is held by a process"),
    Refusal("C7", "capture", "alpha=2", 'alpha=[{"a": handle(group)}]', "the handle 'group'"),
    Refusal(
        "C7",
        "capture",
        "parameter self.layers",
        "parameter handle_source(self_1).layers",
        "'self_1' is held by a process",
    ),
    Refusal(
        "C7",
        "capture_with_function",
        "mul(%z, %y)",
        "mul(%z, handle(group))",
        "the handle 'group' is held by a process",
    ),
    Refusal("C8", "capture_with_function", 'name = "scale"', 'name = ""', "defined twice or has no name"),
    Refusal("C8", "capture_with_function", "operands = 1", "operands = 3", "3 operands, 1 results, 1 saved, which"),
    Refusal(
        "C8",
        "capture_with_function",
        "saved = 1",
        "saved = 2",
        "1 operands, 1 results, 2 saved, which the forward has not",
    ),
    Refusal("C8", "capture_with_function", "return %d", "return %d, %d", "takes 2 values and gives 2, not 2 and 1"),
    Refusal("C8", "capture_with_function", "saved = 1", "saved = 1\n      written = (1,)", "there is no result 1"),
    Refusal("C8", "capture_with_transform", "arguments=1", "arguments=2", "a transform of 2 arguments and 1 outputs"),
    Refusal("C8", "capture_with_transform", "outputs=1", "outputs=3", "a transform of 1 arguments and 3 outputs"),
    Refusal("C8", "capture_with_transform", "wanted=(0,)", "wanted=(1,)", "there is no argument 1"),
    Refusal("C8", "capture_with_control_flow", 'kind="cond"', 'kind="call"', "call takes one function"),
    Refusal("C8", "capture_with_control_flow", 'kind="scan"', 'kind="while_loop"', "while_loop takes two functions"),
    Refusal(
        "C8",
        "capture_with_control_flow",
        "return %k",
        "return %k, %k",
        "the second function takes 1 values and gives 2, not 1 and 1",
    ),
    Refusal(
        "C8", "capture_with_control_flow", "carried=1", "carried=3", "scan of 2 arguments and 2 outputs has 2 results"
    ),
    Refusal("C11", "capture_with_checkpoint", "last=2", "last=3", "there are no nodes 0 to 3"),
    Refusal(
        "C12",
        "capture",
        "LengthIs(source=self.layers, length=1)",
        "Distinct(sources=(x,), others=(y, x))",
        "3 sources, 2 different ones, are to be distinct",
    ),
    Refusal("C10", "capture_with_check", "output=1", "output=2", "output 2 is no computed bool without dimensions"),
    Refusal("C10", "capture_with_check", "output=1", "output=0", "output 0 is no computed bool without dimensions"),
    Refusal("C10", "capture_with_check", "%a: b8[] =", "%a: b8[1] =", "output 1 is no computed bool"),
    Refusal(
        "C9", "capture_with_function", "custom.scale(", "custom.other(", "custom.other is no function of this document"
    ),
    Refusal("C9", "capture_with_function", "(%z, (%y,))", "(%z, %y)", "takes 1 operands and a tuple of 1"),
    Refusal(
        "C9",
        "capture_with_function",
        "%c: f32[s0, 8] grad =",
        "%c: f32[s0, 8] grad, %k: f32[s0, 8] =",
        "1 results, not 2",
    ),
    # B: bindings; P: prims
    Refusal("B1", "grad", 'name="w"', 'name="x"', "'x'"),
    Refusal("B1", "grad", 'name="half"', 'name="mean"', "'mean'"),
    Refusal("B2", "grad", "Fresh(result=0", "Fresh(result=3", "there is no result number 3 of 2"),
    Refusal("B2", "grad", "SameAsInput(input=2)", "SameAsInput(input=3)", "there is no input number 3 of 3"),
    Refusal("B2", "grad", 'ViewOf(of="input", base=0', 'ViewOf(of="input", base=-1', "there is no input number -1"),
    Refusal("B2", "grad", "input=2, result=1", "input=2, result=9", "there is no result number 9"),
    Refusal("B2", TRAINED, "SavedInput(input=1)", "SavedInput(input=4)", "there is no input number 4 of 4"),
    Refusal("B2", TRAINED, "SavedResult(result=2)", "SavedResult(result=3)", "there is no result number 3"),
    Refusal("B2", "grad", "Tangent(result=0", "Tangent(result=5", "there is no result number 5"),
    Refusal("B2", "grad", "((0,),)\n", "((0,),)\n    gradient_inputs = (3,)\n", "there is no input number 3 of 3"),
    Refusal("B2", "program", 'of="result", base=1', 'of="result", base=2', "there is no result number 2 of 2"),
    Refusal(
        "B3",
        "prim",
        "    input %x: f32[2, 4]\n",
        "    input %x: f32[2, 4]\n    input %u: f32[]\n",
        "the forward takes 2",
    ),
    Refusal("B3", "prim", "    input %x: f32[2, 4]\n", "    input %x: f64[2, 4]\n", "the forward takes f64[2, 4]"),
    Refusal("B3", "loop", "%i: i64[8] = input", "%i: i64[9] = input", "the forward takes i64[9]"),
    Refusal("B3", "program", "      f32[8, 16]\n", "      f32[16, 8]\n", "the forward takes f32[16, 8]"),
    Refusal(
        "B4",
        TRAINED,
        "      Tangent(result=0, type=f32[s0, 4])\n",
        "",
        "the backward takes 3 values, the binding gives 2",
    ),
    Refusal("B5", TRAINED, "(None, 0, None)", "(None, 0)", "2 input gradients for 3 inputs"),
    Refusal("B5", TRAINED, "(None, 0, None)", "(None, 1, None)", "there is no gradient number 1 of 1"),
    Refusal("B6", "grad", ", mutated=True", "", "input 2 is not marked as mutated"),
    Refusal(
        "B6",
        "grad",
        "      Mutation(input=2, result=1)\n",
        "      Mutation(input=2, result=1)\n      Mutation(input=2, result=0)\n",
        "input 2 is mutated twice",
    ),
    Refusal("B7", "grad", "    input %half: f32[]\n", "", "the joint takes 4 values, the binding gives 5"),
    Refusal("B7", "grad", "return %y, %mean2, None, %dw, None", "return %y", "1 values, fewer than inputs"),
    Refusal("B8", "grad", "((0,),)", "((0,), (0,))", "2 entries for 1 gradients"),
    Refusal("B8", TRAINED, "((0,),)", "((0,), (0,))", "2 entries for 1 gradients"),
    Refusal("B8", "grad", "((0,),)", "((1,),)", "there is no tangent number 1 of 1"),
    Refusal(
        "B10",
        "grad",
        "gradient_tangents =",
        "closed_by = ((0,), (0,))\n    gradient_tangents =",
        "2 entries for 1 tangents",
    ),
    Refusal(
        "B10",
        "grad",
        "gradient_tangents =",
        "closed_by = ((1,),)\n    gradient_tangents =",
        "there is no tangent number 1 of 1",
    ),
    Refusal(
        "B9",
        TRAINED,
        "SavedInput(input=1)",
        'SavedSize(symbol="s0")',
        "a saved value stands behind a saved size",
    ),
    Refusal("B9", TRAINED, "SavedResult(result=2)", 'SavedSize(symbol="s9")', "'s9' is no declared symbol"),
    Refusal(
        "B9",
        TRAINED,
        "SavedResult(result=2)",
        'SavedSize(symbol="s0")',
        "the backward takes a tensor where 's0'",
    ),
    Refusal("B11", "grad", "    tangents {", "    saved {\n      SavedInput(input=1)\n    }\n    tangents {", "saved"),
    Refusal(
        "B11",
        "grad",
        "    gradient_tangents =",
        "    input_gradients = (0,)\n    gradient_tangents =",
        "input_gradients",
    ),
    Refusal("B12", "grad", "mul.Tensor(%mean, %half)", "mul.Tensor(%mean, %dy)", "the forward uses %dy"),
    Refusal("B12", "grad", "return %y, %mean2,", "return %y, %dz,", "the forward uses %dz"),
    Refusal("P1", "prim", "opset = 2", "opset = 0", "there is no opset 0"),
    Refusal("P2", "prim", "  opset = 2\n", "  joint {\n    return\n  }\n", "a prim has a joint graph, or"),
    Refusal("P2", "prim", "  forward {", "  backward {", "a prim has a joint graph, or"),
    # L: buffers and steps
    Refusal("L1", "loop", "%m: f32[8, 8] = extern", "%s: f32[8, 8] = extern", "the buffer 's' is declared twice"),
    Refusal("L1", "loop", "= view of %s", "= kernel of %s", "a buffer of role 'kernel' with base 's'"),
    Refusal("L1", "loop", "= view of %s", "= view", "a buffer of role 'view' with base None"),
    Refusal("L1", "loop", "= view of %s", "= view of %t", "the base 't' is no buffer with its own memory"),
    Refusal("L1", "loop", "= view of %s", "= view of %zzz", "the base 'zzz' is no buffer"),
    Refusal("L1", "loop", "= extern", "= extern reuse %s", "a buffer of role 'extern' reuses 's'"),
    Refusal("L2", "loop", 'inputs = ("x", "i")', 'inputs = ("x", "x")', "the input 'x' stands twice"),
    Refusal("L2", "loop", 'inputs = ("x", "i")', 'inputs = ("x", "q")', "'q' is no buffer of role 'input'"),
    Refusal("L2", "loop", 'inputs = ("x", "i")', 'inputs = ("x",)', "%i is not among the inputs"),
    Refusal("L2", "loop", "kernel gather", "kernel softmax", "two kernels are called 'softmax'"),
    Refusal(
        "L2",
        "loop",
        'inputs = ("x", "i")',
        'inputs = ("x", "i")\n    updates = ((7, "x"),)',
        "output 7 cannot update %x",
    ),
    Refusal("L3", "loop", "aten.mm.default(%s, %t)", "aten.mm.default(%s, %u)", "there is no buffer %u"),
    Refusal("L3", "loop", "free %m", "free %n", "there is no buffer %n"),
    Refusal("L3", "loop", "outputs = (%r, %q)", "outputs = (%r, [%n])", "there is no buffer %n"),
    Refusal("L3", "loop", "reuse %s", "reuse %n", "there is no buffer %n"),
    Refusal(
        "L3", "loop", "load %x[16*i0 + i1]\n          %m", "load %n[16*i0 + i1]\n          %m", "there is no buffer %n"
    ),
    Refusal("L4", "loop", "store %q[16*i0 + i1]", "store %x[16*i0 + i1]", "%x is the caller's"),
    Refusal(
        "L5",
        "loop",
        "load %x[16*i0 + i1]\n          %m",
        "load %q[16*i0 + i1]\n          %m",
        "read before anything writes",
    ),
    Refusal("L5", "loop", "aten.mm.default(%s, %t)", "aten.mm.default(%s, %q)", "%q is read before anything writes it"),
    Refusal("L6", "loop", "%m: f32[8, 8] = extern", "%m: f32[8, 8] = kernel", "%m"),
    Refusal("L6", "loop", "%m, _ = aten", "%m, %m = aten", "%m"),
    Refusal("L7", "loop", "outputs = (%r, %q)", "outputs = (%r, %m)", "the output %m was freed"),
    Refusal("L7", "loop", "free %m\n", "free %m\n      free %m\n", "%m is freed twice"),
    Refusal("L7", "loop", "free %m\n", "free %m\n      _ = aten.add_.Tensor(%m)\n", "%m is used after it was freed"),
    Refusal("L8", "loop", "%r: f32[8, 16] =", "%r: f64[8, 16] =", "%r has 1024 bytes, %s has 512"),
    Refusal("L8", "loop", "outputs = (%r, %q)", "outputs = (%r, %s)", "%s is an input, a view, an output, or taken"),
    Refusal("L8", "loop", "store %r[16*i0 + i1]", "store %r[8*i1 + i0]", "%s is read in place of %r at another index"),
    Refusal("L8", "loop", "load %x[16*%p + i1]", "load %s[16*%p + i1]", "%s is used after %r took its memory"),
    Refusal("L10", "loop", "%s, %t)", '%s, %t, "out or print"=1)', "'out or print' is no name of an argument"),
    Refusal("L10", "loop", "aten.mm.default(", "aten.from_file.default(", "aten.from_file.default opens files"),
    Refusal("L9", "loop", "aten.mm.default(", "mm(", "'mm' is no qualified name"),
    # K: kernels
    Refusal("K1", "loop", "inplace for i0 in 8, i1 in 16", "inplace for i0 in 8, i0 in 16", "the axis 'i0'"),
    Refusal("K1", "loop", "section for i1 in 16", "section for i0 in 16", "the axis 'i0' hides another"),
    Refusal("K1", "loop", "for j1 in 16", "for j1 in -1", "the axis 'j1' has size -1"),
    Refusal("K2", "loop", "%b: f32 = mul", "%a: f32 = mul", "the value 'a' is defined twice"),
    Refusal("K2", "loop", "%b: f32 = mul", "%i0: f32 = mul", "the value 'i0' is called like an axis"),
    Refusal("K3", "loop", "exp(%d)", "exp(%h)", "the value %h is not defined here"),
    Refusal("K3", "loop", "sub(%w, %m)", "sub(%v, %m)", "the value %v is not defined here"),
    Refusal("K3", "loop", "load %x[%k]", "load %x[%later]", "the value %later is not defined here"),
    Refusal("K3", "loop", "if %ok", "if %later", "the value %later is not defined here"),
    Refusal("K4", "loop", "load %i[i0]", "load %i[i7]", "there is no axis 'i7' here"),
    Refusal("K4", "loop", "index 16*i0 + (i1)//2", "index 16*i0 + (j1)//2", "there is no axis 'j1' here"),
    Refusal(
        "K5", "loop", "store %q[16*i0 + i1]", "store %q[16*i0 + i1 + 1]", "from 1 to 128, %q has elements 0 to 127"
    ),
    Refusal("K5", "loop", "load %i[i0]", "load %i[(i1)//2 + 1]", "the index runs from 1 to 8, %i has elements 0 to 7"),
    Refusal("K5", "loop", "load %i[i0]", "load %i[i0 - 1]", "the index runs from -1 to 6"),
    Refusal("K6", "loop", "if %ok", "if %p", "the mask %p has dtype int64"),
    Refusal("K6", "loop", "16*%p + i1", "16*%f + i1", "%f of dtype float32 is no index"),
    Refusal("K6", "loop", "%a: f32 = load", "%a: f64 = load", "a load of float64 from %s of dtype float32"),
    Refusal("K7", "loop", "reduce max", "reduce welford", "welford has 3 results, not 1"),
    Refusal("K7", "loop", "%m: f32 = reduce", "%m, %n: f32 = reduce", "max has 1 results, not 2"),
    Refusal("K8", "loop", "%b: f32 = mul(%a, 2.0)", "%b: f32 = scan sum %a", "a scan of %b over no axes"),
    Refusal("K8", "loop", "%e: f32 = exp(%d)", "%e: f64 = scan sum %d", "a scan in float64 of %d, float32"),
    Refusal("K9", "loop", "%b: f32 = mul(%a, 2.0)", "%b: f32 = mul(%a)", "mul takes 2 operands, not 1"),
    Refusal("K9", "loop", "%b: f32 = mul(%a, 2.0)", "%b: f32 = mull(%a, 2.0)", "has no op 'mull'"),
    Refusal("K9", "loop", "%b: f32 = mul(%a, 2.0)", "%b: f64 = mul(%a, 2.0)", "mul gives float32"),
    Refusal("K10", "loop", "store %q[16*i0 + i1]", "store %q[i1]", "all points of the axis 'i0' set one element of %q"),
    Refusal("K10", "loop", "store %q[16*i0 + i1]", "store %q[8*i0 + i1]", "two points set element 8 of %q"),
    # R: programs
    Refusal(
        "R1", "program", "launch exp_kernel(%x, %y)", "launch sin_kernel(%x, %y)", "there is no kernel 'sin_kernel'"
    ),
    Refusal(
        "R1", "program", "launch exp_kernel(%x, %y)", "launch exp_kernel(%x)", "has 2 parameters, the launch gives 1"
    ),
    Refusal(
        "R1",
        "program",
        "    kernels {\n",
        '    kernels {\n      KernelInfo(name="exp_kernel", parameters=())\n',
        "two kernels are called 'exp_kernel'",
    ),
    Refusal("R2", "program", "launch exp_kernel(%x, %y)", "launch exp_kernel(%x, %b)", "%b does not exist yet"),
    Refusal("R2", "program", "= view %y", "= view %b", "%b does not exist yet"),
    Refusal("R2", "program", "%v: f32", "%y: f32", "the buffer 'y' is made twice"),
    Refusal("R3", "program", "release %a", "release %b", "%b is used after its end"),
    Refusal(
        "R3", "program", "release %a\n", "release %a\n      call aten.add_.Tensor(%a)\n", "%a is used after its end"
    ),
    Refusal("R4", "program", "%c: f32[8, 16]", "%c: f32[8, 8]", "256 bytes in place of the 512 of %b"),
    Refusal("R4", "program", "reuse %b", "reuse %x", "%x is the caller's"),
    Refusal("R5", "program", "outputs = (%y, %c)", "outputs = (%y, [%b])", "the output %b does not exist at the end"),
    Refusal("R6", "program", 'inputs = ("x",)', 'inputs = ("x",)\n    written = ("c",)', "%c is written and no input"),
    Refusal("R6", "program", 'inputs = ("x",)', 'inputs = ("x", "z")', "2 inputs, 1 types"),
    Refusal("R6", "program", 'inputs = ("x",)', 'inputs = ("x", "x")', "the input 'x' stands twice"),
    Refusal("R8", "program", "(f32[8, 8], None)", "(f32[8, 8],)", "1 types for 2 results"),
    Refusal("R7", "program", "aten.mm.default(", "mm(", "'mm' is no qualified name"),
    Refusal("R10", "program", "%y, %v)", '%y, %v, "def"=1)', "'def' is no name of an argument"),
    Refusal("R10", "program", "aten.mm.default(", "debugprims.load_tensor.default(", "opens files"),
    Refusal("R11", "program", 'target = "cpp"', 'target = "c++"', "'c++' is no name of a target"),
    Refusal("R12", "program", "      launch exp_kernel(%x, %c)\n", "", "nothing writes the output %c"),
    Refusal("R9", "program", "    outputs =", CHOICE.format(0, 12), "a choice from 0 to 12, behind 0"),
    Refusal("R9", "program", "    outputs =", CHOICE.format(7, 7), "a choice from 7 to 7, behind 0"),
    Refusal("R9", "program", "    outputs =", CHOICE.format(6, 8), "the output %c does not exist"),
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=[f"{r.label}-{number}" for number, r in enumerate(REFUSALS)])
def test_broken_constraints_are_refused(refusal: Refusal) -> None:
    text = (DOCUMENTS / f"{refusal.kind}.txt").read_text()
    assert text.count(refusal.old) >= 1
    document = parse_document(text.replace(refusal.old, refusal.new, 1))
    found = [fault for fault in faults(document) if fault.label == refusal.label]
    assert any(refusal.says in fault.message for fault in found), list(faults(document))
    with pytest.raises(VerifyError) as error:
        verify(document)
    assert re.search(r"^SW003: \[[A-Z]\d+\] ", str(error.value))
    assert re.search(r"^> +\d+ \|.*\S", str(error.value), re.MULTILINE), "no window of printed lines"


def test_a_function_has_symbols_of_its_own() -> None:
    text = (DOCUMENTS / "capture.txt").read_text()
    text = text.replace("torch.add(", ATTENTION.format(r"input %v: f32[n0, 2*n0]\nreturn %v"), 1)
    assert "G8" not in {fault.label for fault in faults(parse_document(text))}


def labels_in_the_code() -> set[str]:
    """Every label that a module of the verifier reports."""
    directory = Path(stagewire.verify.__file__).parent
    code = "".join(path.read_text() for path in directory.glob("*.py"))
    return set(re.findall(r'"([A-Z]\d+)"', code))


def test_every_label_has_an_example() -> None:
    calls_of_ops = {label for label in labels_in_the_code() if label.startswith("V")}  # in test_vocabulary.py
    others = (Path(__file__).parent / "test_sizes.py").read_text()
    of_sizes = set(re.findall(r'^    \("([A-Z]\d+)"', others, re.MULTILINE))
    assert labels_in_the_code() - calls_of_ops == {refusal.label for refusal in REFUSALS} | of_sizes


def test_every_label_is_in_the_readme() -> None:
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    missing = {label for label in labels_in_the_code() if not re.search(rf"\b{label}\b", readme)}
    assert not missing


@pytest.mark.parametrize(
    "kind",
    [
        "capture_with_function",
        "capture_with_check",
        "capture_with_transform",
        "capture_with_control_flow",
        "capture_with_checkpoint",
        "grad",
        "prim",
        TRAINED,
        "loop",
        "program",
    ],
)
def test_the_documents_that_the_examples_change_verify(kind: str) -> None:
    verify(parse_document((DOCUMENTS / f"{kind}.txt").read_text()))


def test_the_refusal_shows_the_lines_and_the_users_line() -> None:
    text = (DOCUMENTS / "prim.txt").read_text().replace("amax(%x", "amax(%nothing")
    with pytest.raises(VerifyError) as error:
        verify(parse_document(text))
    assert str(error.value) == REFUSED


REFUSED = """\
SW003: [G2] %nothing is used before it is defined
     9 | }
    10 | forward {
    11 |   input %x: f32[2, 4]
>   12 |   %m: f32[2] = prims.amax(%nothing, [1])  # model.py:3 in softmax
    13 |   %b: f32[2, 4] = prims.broadcast_in_dim(%m, [2, 4], [0])
    14 |   %e: f32[2, 4] = prims.sub(%x, %b)
    15 |   %values: f32[2, 4], %indices: i64[2, 4] = aten.sort.default(%e, -1, False)
  at model.py:3 in softmax
  fix: The stage that wrote this document has a fault; report it with the document."""


def test_integers_of_types_are_checked_without_the_printed_form() -> None:
    """A size that no text can say: the verifier still refuses it with a window."""
    document = parse_document((DOCUMENTS / "prim.txt").read_text())
    value = msgspec.structs.replace(document.forward.inputs[0], name="")
    broken = msgspec.structs.replace(
        document, forward=graph.Graph((value, *document.forward.inputs[1:]), document.forward.nodes, ())
    )
    assert next(faults(broken)).label == "G1"
    with pytest.raises(VerifyError, match=r"\[G1\] a value has an empty name"):
        verify(broken)


@pytest.mark.parametrize(("loaded", "stored", "broken"), [
    ("i0", "i0", ()), ("i0", "i1", ("K10",)), ("8*i1 + i0", "i0", ("K10",)),
    ("i0 + i1", "i0 + i1", ()), ("i0", "i0 + i1", ("K10",)),
])  # fmt: skip
def test_points_that_set_one_element_to_one_value_are_let_be(loaded: str, stored: str, broken: tuple[str, ...]) -> None:
    """As overlapping windows do that are read from one row."""
    text = (DOCUMENTS / "loop.txt").read_text()
    text = text.replace("%a: f32 = load %s[16*i0 + i1]", f"%a: f32 = load %s[{loaded}]")
    text = text.replace(" reuse %s", "")
    text = text.replace("store %r[16*i0 + i1]", f"store %r[{stored}]")
    assert tuple(fault.label for fault in faults(parse_document(text)) if fault.label != "L5") == broken
