"""FlexAttention on a CPU: what the function of a call computes, and which calls have one."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

import codegen
from codegen.stage import Options, emit
from codegen.testing.flex_attention import (
    BATCH,
    CAUSAL,
    HEADS,
    LENGTH,
    TWICE,
    attention,
    expected,
    function,
    operands,
)  # fmt: skip
from stagewire.expr import symbol
from stagewire.graph import List, Ref
from stagewire.loop import Buffer, Extern, LoopGraph
from stagewire.program import CallExtern, Launch, Unit
from stagewire.types import contiguous

LOG2 = math.log(2)


def unit_of(graph: LoopGraph, **options: int) -> Unit:
    unit = emit(graph, Options(target="cpp", **options))
    assert not any(isinstance(one, CallExtern) for one in unit.instructions)
    return unit


def run(graph: LoopGraph, directory: Path, *inputs: torch.Tensor, **options: int) -> tuple[torch.Tensor, ...]:
    return tuple(codegen.load(unit_of(graph, **options), directory)(*inputs))


@pytest.mark.parametrize("threshold", [0, 1 << 40])
@pytest.mark.parametrize(("causal", "factor"), [(False, 1.0), (True, 1.0), (False, 2.0), (True, 2.0)])
def test_results_and_statistics(causal: bool, factor: float, threshold: int, directory: Path) -> None:
    functions = [function(TWICE) if factor != 1 else "", function(CAUSAL, "b8") if causal else ""]
    given = [each.detach() for each in operands()]
    found = run(attention(functions), directory, *given, parallel_threshold=threshold)
    torch.testing.assert_close(found, expected(*given, causal=causal, factor=factor))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [8, 40, 256])
def test_half_precision_and_other_widths(dtype: str, width: int, directory: Path) -> None:
    sizes = (1, 2, 70, 131)
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, n, width).to(getattr(torch, dtype)) for heads, n in ((2, 70), (1, 131), (1, 131))
    )
    graph = attention([function(TWICE, sizes=sizes), ""], dtype=dtype, width=width, sizes=sizes)
    found = run(graph, directory, query, key, value)[0]
    wide = [each.double() for each in (query, key, value)]
    wanted = (wide[0] @ wide[1].mT * 0.5).softmax(-1) @ wide[2]
    torch.testing.assert_close(found, wanted.to(found.dtype), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [1, 3])
def test_few_queries(length: int, dtype: str, directory: Path) -> None:
    sizes = (BATCH, HEADS, length, 300)
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(BATCH, heads, n, 24).to(getattr(torch, dtype)) for heads, n in ((HEADS, length), (2, 300), (2, 300))
    )
    seen = ["%q: i64 = index i1", "%k: i64 = index i2", "%e: i64 = add(%q, 100)", "%out: b8 = ge(%e, %k)"]
    functions = [function(TWICE, sizes=sizes), function(seen, "b8", sizes=sizes)]
    found = run(attention(functions, dtype=dtype, width=24, sizes=sizes), directory, query, key, value)
    keys, values = (each.double().repeat_interleave(HEADS // 2, 1) for each in (key, value))
    scores = query.double() @ keys.mT * 0.5
    scores = scores.masked_fill(torch.ones(length, 300).triu(101).bool(), -math.inf)
    wanted = scores.softmax(-1) @ values
    torch.testing.assert_close(
        found[0], wanted.to(found[0].dtype), rtol=1e-2 if dtype == "bfloat16" else 1e-4, atol=1e-4
    )
    torch.testing.assert_close(found[1].double(), scores.logsumexp(-1) / math.log(2), rtol=1e-5, atol=1e-5)


HEAD = ["%h: i64 = index i0", "%f: f32 = convert(%h)"]
SCORE_MODS = [
    ([], lambda score, h, q, k: score),
    (TWICE, lambda score, h, q, k: score * 2),
    ([*HEAD, "%out: f32 = sub(%score, %f)"], lambda score, h, q, k: score - h),
    (["%d: i64 = index -1*i1 + i2", "%e: f32 = convert(%d)", "%f: f32 = mul(%e, 0.0625)",
      "%out: f32 = add(%score, %f)"], lambda score, h, q, k: score + (k - q) / 16),
    (["%t: f32 = tanh(%score)", "%out: f32 = mul(%t, 8.0)"], lambda score, h, q, k: 8 * score.tanh()),
]  # fmt: skip
POSITIONS = ["%h: i64 = index i0", "%q: i64 = index i1", "%k: i64 = index i2"]
MASK_MODS = [
    ([], lambda h, q, k: q >= 0),
    (CAUSAL, lambda h, q, k: q >= k),
    ([*POSITIONS, "%out: b8 = gt(%q, 3)"], lambda h, q, k: q > 3),
    ([*POSITIONS, "%end: i64 = add(%q, %h)", "%out: b8 = le(%end, %k)"], lambda h, q, k: q + h <= k),
]


@settings(max_examples=15, deadline=None, derandomize=True)
@drawn(st.integers(0, 2**64 - 1))
def test_drawn_functions_sizes_and_blocks(directory: Path, number: int) -> None:
    order = random.Random(number)
    among = (1, 2), (1, 2, 4), (1, 4, 5, 64, 70, 130), (1, 33, 64, 200)
    batch, heads, length, keys = sizes = tuple(order.choice(each) for each in among)
    width, shared = order.choice((8, 16, 33, 64)), max(1, heads // 2)
    stated = (symbol("b"), heads, symbol("m"), symbol("n")) if order.random() < 0.5 else sizes
    (score_lines, score_mod), (mask_lines, mask_mod) = order.choice(SCORE_MODS), order.choice(MASK_MODS)
    functions = [
        function(score_lines, sizes=stated) if score_lines else "",
        function(mask_lines, "b8", sizes=stated) if mask_lines else "",
    ]
    torch.manual_seed(number % 2**32)
    shapes = [(batch, heads, length, width), (batch, shared, keys, width), (batch, shared, keys, width)]
    query, key, value = map(torch.randn, shapes)
    h = torch.arange(batch * heads).view(batch, heads, 1, 1)
    q, k = torch.arange(length).view(-1, 1), torch.arange(keys)
    seen = mask_mod(h, q, k).expand(batch, heads, length, keys)
    kinds, lists = order.choice(((), ("partial",), ("partial", "full"))), list[torch.Tensor]()
    if kinds:
        rows, columns = -(-length // 16), -(-keys // 16)
        states = torch.randint(0, len(kinds) + 1, (rows, columns))  # 0: without a key
        state = states.repeat_interleave(16, 0)[:length].repeat_interleave(16, 1)[:, :keys]
        seen = (seen & (state == 1)) | (state == 2)
        for one in range(1, len(kinds) + 1):
            for table in (states == one, (states == one).T.contiguous()):
                first = table.int().argsort(stable=True, dim=-1, descending=True)
                lists += [table.sum(-1).int()[None, None], first.int()[None, None]]
    graph = attention(functions, blocks=kinds, width=width, sizes=stated)
    threshold = order.choice((0, 1 << 40))
    found = run(graph, directory, query, key, value, *lists, parallel_threshold=threshold)
    wide = [query.double(), *(each.double().repeat_interleave(heads // shared, 1) for each in (key, value))]
    scores = score_mod(wide[0] @ wide[1].mT * 0.25, h, q, k).masked_fill(~seen, -math.inf)
    wanted = [scores.softmax(-1).nan_to_num(0) @ wide[2], scores.logsumexp(-1) / LOG2, scores.amax(-1) / LOG2]
    torch.testing.assert_close(found, tuple(each.float() for each in wanted), rtol=1e-4, atol=1e-4)


def test_rows_without_a_key_are_zero_and_nan_stays_in_its_row(directory: Path) -> None:
    given = [each.detach() for each in operands()]
    given[0][0, 1, 5] = math.nan
    seen = ["%q: i64 = index i1", "%out: b8 = ge(%q, 3)"]
    out, logsumexp, largest = run(attention(["", function(seen, "b8")]), directory, *given)
    assert (out[:, :, :3] == 0).all()
    assert (logsumexp[:, :, :3] == -math.inf).all()
    assert (largest[:, :, :3] == -math.inf).all()
    rows = out.isnan().any(-1)
    assert rows[0, 1, 5]
    assert rows.sum() == 1
    wanted = expected(*given, causal=False, factor=1.0)[0]
    torch.testing.assert_close(out[:, :, 6:], wanted[:, :, 6:])


def test_blocks_that_are_not_listed_are_not_computed(directory: Path) -> None:
    given = [each.detach() for each in operands()]
    rows, columns = 3, 4
    counts, of_keys = torch.ones(1, 1, rows, dtype=torch.int32), torch.ones(1, 1, columns, dtype=torch.int32)
    places, of_places = (torch.zeros(1, 1, *shape, dtype=torch.int32) for shape in ((rows, columns), (columns, rows)))
    for each in given[1:]:
        each[:, :, 16:] = math.nan
    found = run(attention(["", ""], blocks=("partial",)), directory, *given, counts, places, of_keys, of_places)
    first = [given[0], *(each[:, :, :16] for each in given[1:])]
    torch.testing.assert_close(found[0], expected(*first, causal=False, factor=1.0)[0])


def test_an_index_out_of_range_is_reported(directory: Path) -> None:
    """A function that reads a table at what another table says."""
    lines = [
        "%at: i64 = load %place[i1]", "%checked: i64 = check_index(%at, 4)",
        "%bias: f32 = load %table[%checked]", "%out: f32 = add(%score, %bias)",
    ]  # fmt: skip
    text = function(lines)
    for name, type_ in (("place", f"i64[{LENGTH}]"), ("table", "f32[4]")):
        text = text.replace("      %output:", f"      %{name}: {type_} = input\n      %output:", 1)
    text = text.replace('inputs = ("score",)', 'inputs = ("score", "place", "table")')
    graph = attention([text, ""])
    (call,) = graph.steps
    assert isinstance(call, Extern)
    args = (*call.args[:4], List((Ref("place"), Ref("table"))), *call.args[5:])
    more = (
        Buffer("place", contiguous("int64", (LENGTH,)), "input"),
        Buffer("table", contiguous("float32", (4,)), "input"),
    )
    graph = replace(
        graph,
        steps=(replace(call, args=args),),
        buffers=(*graph.buffers, *more),
        inputs=(*graph.inputs, "place", "table"),
    )
    given, table = [each.detach() for each in operands()], torch.tensor([0.0, 1.0, 2.0, 3.0])
    found = run(graph, directory, *given, torch.arange(LENGTH) % 4, table)
    torch.testing.assert_close(found[0], expected(*given, causal=False, factor=1.0)[0])  # a row's bias changes nothing
    with pytest.raises(IndexError):
        run(graph, directory, *given, torch.arange(LENGTH) % 5, table)


def test_what_does_not_depend_on_the_key_is_computed_once_a_row() -> None:
    slope = ["%h: i64 = index i0", "%f: f32 = convert(%h)", "%e: f32 = exp2(%f)", "%out: f32 = add(%score, %e)"]
    source = unit_of(attention([function(slope), ""])).source
    inside = source.partition("for (i64 c = 0; c < columns; c++) {")[2].partition("}")[0]
    assert "exp2" not in inside
    assert "exp2" in source


@pytest.mark.parametrize(
    "graph",
    [attention(["", "", ""], backward=True), attention(["", ""], dtype="float64"),
     attention([function(["%r: f32 = load %score[i0]", "%out: f32 = add(%score, %r)"]), ""])],
    ids=["backward", "float64", "a function of other scores"],
)  # fmt: skip
def test_other_calls_stay_calls(graph: LoopGraph) -> None:
    unit = emit(graph, Options(target="cpp"))
    assert any(isinstance(one, CallExtern) for one in unit.instructions)
    assert not any(isinstance(one, Launch) for one in unit.instructions)
