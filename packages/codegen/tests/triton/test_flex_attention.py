"""FlexAttention as kernels: which functions they take, what is computed, and what not."""

from __future__ import annotations

import math

import pytest
import torch
from msgspec.structs import replace

import codegen
from codegen.stage import Options, emit
from codegen.testing.flex_attention import (
    BATCH,
    CAUSAL,
    HEADS,
    SHARED,
    TWICE,
    TWICE_BACK,
    attention,
    expected,
    function,
    operands,
)  # fmt: skip
from codegen.triton.tuning import SM_90
from stagewire.expr import symbol
from stagewire.loop import LoopGraph
from stagewire.program import CallExtern, Launch, Unit


def unit_of(graph: LoopGraph) -> Unit:
    return emit(graph, Options(target="triton"))


def run(graph: LoopGraph, directory, device: str, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    buffers = tuple(replace(b, type=replace(b.type, device=device)) for b in graph.buffers)
    unit = unit_of(replace(graph, buffers=buffers))
    return tuple([found.cpu() for found in codegen.load(unit, directory)(*[x.to(device) for x in inputs])])


FUNCTIONS = {"none": (False, 1.0), "mask": (True, 1.0), "scores": (False, 2.0), "both": (True, 2.0)}


OPEN = (symbol("b"), HEADS, symbol("m"), symbol("n"))


@pytest.mark.parametrize("sizes", [(), OPEN], ids=["fixed", "open"])
@pytest.mark.parametrize("case", FUNCTIONS)
def test_results_and_gradients(case, sizes, directory, device):
    causal, factor = FUNCTIONS[case]
    score = function(TWICE, sizes=sizes) if factor != 1 else ""
    mask = function(CAUSAL, "b8", sizes=sizes) if causal else ""
    of_sizes = {"sizes": sizes} if sizes else {}
    given = operands()
    wanted = expected(*given, causal=causal, factor=factor)
    plain = [each.detach() for each in given]
    found = run(attention([score, mask], **of_sizes), directory, device, *plain)
    torch.testing.assert_close(found, wanted)
    grad = torch.randn_like(wanted[0])
    delta = (grad * wanted[0]).sum(-1).detach()
    gradient = function(TWICE_BACK, inputs=2, sizes=sizes) if score else ""
    backward = attention([score, mask, gradient], backward=True, **of_sizes)
    gradients = run(backward, directory, device, *plain, grad, wanted[1].detach(), delta)
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted[0], given, grad), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keys", [300, symbol("n")], ids=str)
@pytest.mark.parametrize("length", [1, 7])
def test_few_queries_share_the_keys_among_programs(length, keys, directory, device):
    sizes = (BATCH, HEADS, length, keys)
    torch.manual_seed(0)
    query, key, value = (torch.randn(BATCH, h, n, 16) for h, n in ((HEADS, length), (SHARED, 300), (SHARED, 300)))
    seen = ["%q: i64 = index i1", "%k: i64 = index i2", "%e: i64 = add(%q, 100)", "%out: b8 = ge(%e, %k)"]
    graph = attention([function(TWICE, sizes=sizes), function(seen, "b8", sizes=sizes)], sizes=sizes)
    parts = 2 if keys == 300 else -(-SM_90.programs // (BATCH * HEADS))
    assert [info.grid for info in unit_of(graph).kernels] == [(parts, BATCH * HEADS), (1, BATCH * HEADS)]
    keys, values = (each.repeat_interleave(HEADS // SHARED, 1) for each in (key, value))
    scores = query @ keys.mT * 0.5
    scores = scores.masked_fill(torch.ones(length, 300).triu(101).bool(), -math.inf)
    wanted = scores.softmax(-1) @ values, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)
    torch.testing.assert_close(run(graph, directory, device, query, key, value), wanted)


@pytest.mark.parametrize("sizes", [(BATCH, HEADS, 40, 50), OPEN], ids=["fixed", "open"])
def test_blocks_that_are_not_listed_are_not_computed(sizes, directory, device):
    given = [each.detach() for each in operands()]
    rows, columns = 3, 4
    counts, of_keys = torch.ones(1, 1, rows, dtype=torch.int32), torch.ones(1, 1, columns, dtype=torch.int32)
    places, of_places = (torch.zeros(1, 1, *shape, dtype=torch.int32) for shape in ((rows, columns), (columns, rows)))
    graph = attention(["", ""], blocks=("partial",), sizes=sizes)
    found = run(graph, directory, device, *given, counts, places, of_keys, of_places)
    first = [given[0], *(each[:, :, :16] for each in given[1:])]
    torch.testing.assert_close(found[0], expected(*first, causal=False, factor=1.0)[0])


@pytest.mark.parametrize(
    "lines",
    [["%r: f32 = load %score[i0]", "%out: f32 = add(%score, %r)"], ["%out: f32 = load %score[2000*i0 + i1]"]],
)
def test_functions_of_other_scores_stay_calls(lines):
    unit = unit_of(attention([function(lines), ""]))
    assert any(isinstance(one, CallExtern) for one in unit.instructions)
    assert not any(isinstance(one, Launch) for one in unit.instructions)


def test_places_are_computed_in_32_bits():
    distance = ["%q: i64 = index i1", "%k: i64 = index i2", "%d: i64 = sub(%q, %k)", "%f: f32 = convert(%d)"]
    source = unit_of(attention([function([*distance, "%out: f32 = add(%score, %f)"]), ""])).source
    assert "tl.int64" not in source.partition("def attention")[2]
    wide = [*distance[:3], "%s: i64 = shift_left(%d, 40)", "%f: f32 = convert(%s)", "%out: f32 = add(%score, %f)"]
    source = unit_of(attention([function(wide), ""])).source
    assert "tl.int64" in source.partition("def attention")[2]
