"""FlexAttention on a CPU: what the function of a call computes, and which calls have one."""

from __future__ import annotations

import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import codegen
from codegen.stage import Options, emit
from codegen.testing.flex_attention import (
    CAUSAL,
    LENGTH,
    TWICE,
    attention,
    expected,
    function,
    operands,
)  # fmt: skip
from stagewire.graph import List, Ref
from stagewire.loop import Buffer, Extern, LoopGraph
from stagewire.program import CallExtern, Launch, Unit
from stagewire.types import contiguous


def unit_of(graph: LoopGraph, **options: int) -> Unit:
    unit = emit(graph, Options(target="cpp", **options))
    assert not any(isinstance(one, CallExtern) for one in unit.instructions)
    return unit


def run(graph: LoopGraph, directory: Path, *inputs: torch.Tensor, **options: int) -> tuple[torch.Tensor, ...]:
    return tuple(codegen.load(unit_of(graph, **options), directory)(*inputs))


@pytest.mark.parametrize("threshold", [0, 1 << 40])
@pytest.mark.parametrize(("causal", "factor"), [(False, 1.0), (True, 1.0), (False, 2.0), (True, 2.0)])
def test_results_and_statistics(causal: bool, factor: float, threshold: int, tmp_path: Path) -> None:
    functions = [function(TWICE) if factor != 1 else "", function(CAUSAL, "b8") if causal else ""]
    given = [each.detach() for each in operands()]
    found = run(attention(functions), tmp_path, *given, parallel_threshold=threshold)
    torch.testing.assert_close(found, expected(*given, causal=causal, factor=factor))


LENGTHS, WIDTHS = (1, 3, 4, 5, 16, 64, 70, 131), (1, 8, 16, 40, 256)


@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.tuples(*map(st.sampled_from, ((1, 2), (1, 2, 4), LENGTHS, LENGTHS))),
    width=st.sampled_from(WIDTHS),
    dtype=st.sampled_from(("float32", "bfloat16", "float16")),
    doubled=st.booleans(),
    ahead=st.none() | st.integers(-2, 70),
    listed=st.none() | st.integers(0, 99),
    threshold=st.sampled_from((0, 1 << 40)),
    seed=st.integers(0, 99),
)
def test_drawn_calls(
    sizes: tuple[int, int, int, int], width: int, dtype: str, doubled: bool, ahead: int | None, listed: int | None,
    threshold: int, seed: int,
) -> None:  # fmt: skip
    """ahead: by how many places a key may be ahead of its query, if at all. listed: which blocks are computed, by a
    seed, or all of them."""
    batch, heads, length, keys = sizes
    order = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, length, width), *[(batch, max(1, heads // 2), keys, width)] * 2]
    tensors = [torch.randn(shape, generator=order).to(getattr(torch, dtype)) for shape in shapes]
    seen = ["%q: i64 = index i1", "%k: i64 = index i2", f"%e: i64 = add(%q, {ahead})", "%out: b8 = ge(%e, %k)"]
    functions = [
        function(TWICE, sizes=sizes) if doubled else "",
        "" if ahead is None else function(seen, "b8", sizes=sizes),
    ]
    graph = attention(functions, dtype=dtype, width=width, sizes=sizes, blocks=listed is not None)
    lists, kept = ((), torch.ones(length, keys).bool()) if listed is None else blocks_of(length, keys, listed)
    if ahead is not None:
        kept &= torch.ones(length, keys).tril(ahead).bool()
    with TemporaryDirectory() as directory:
        found = run(graph, Path(directory), *tensors, *lists, parallel_threshold=threshold)
    query, key, value = (each.double() for each in tensors)
    key, value = (each.repeat_interleave(heads // each.shape[1], 1) for each in (key, value))
    scores = (query @ key.mT * (0.5 if doubled else 0.25)).masked_fill(~kept, -math.inf)
    wanted = scores.softmax(-1).nan_to_num(0.0) @ value
    loose = {} if dtype == "float32" else {"rtol": 1e-2, "atol": 1e-3}
    torch.testing.assert_close(found[0], wanted.to(found[0].dtype), **loose)
    for statistic, one in zip(found[1:], (scores.logsumexp(-1), scores.amax(-1)), strict=True):
        torch.testing.assert_close(statistic.double(), one / math.log(2), rtol=1e-5, atol=1e-5)


def blocks_of(length: int, keys: int, seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Some blocks of 16 queries and keys as a call has them, in any order, and the places that are in them."""
    order = random.Random(seed)
    rows, columns = -(-length // 16), -(-keys // 16)
    chosen = [order.sample(range(columns), order.randint(0, columns)) for _ in range(rows)]
    places = torch.tensor([[*row, *[n for n in range(columns) if n not in row]] for row in chosen], dtype=torch.int32)
    kept = torch.zeros(rows, columns).bool()
    for row, listed in enumerate(chosen):
        kept[row, listed] = True
    counts = torch.tensor([len(row) for row in chosen], dtype=torch.int32)
    unused = torch.zeros(1, 1, columns, dtype=torch.int32), torch.zeros(1, 1, columns, rows, dtype=torch.int32)
    whole = kept.repeat_interleave(16, 0).repeat_interleave(16, 1)[:length, :keys]
    return [counts[None, None], places[None, None], *unused], whole


def test_rows_without_a_key_are_zero_and_nan_stays_in_its_row(tmp_path: Path) -> None:
    given = [each.detach() for each in operands()]
    given[0][0, 1, 5] = math.nan
    seen = ["%q: i64 = index i1", "%out: b8 = ge(%q, 3)"]
    out, logsumexp, largest = run(attention(["", function(seen, "b8")]), tmp_path, *given)
    assert (out[:, :, :3] == 0).all()
    assert (logsumexp[:, :, :3] == -math.inf).all()
    assert (largest[:, :, :3] == -math.inf).all()
    rows = out.isnan().any(-1)
    assert rows[0, 1, 5]
    assert rows.sum() == 1
    wanted = expected(*given, causal=False, factor=1.0)[0]
    torch.testing.assert_close(out[:, :, 6:], wanted[:, :, 6:])


def test_blocks_that_are_not_listed_are_not_computed(tmp_path: Path) -> None:
    given = [each.detach() for each in operands()]
    rows, columns = 3, 4
    counts, of_keys = torch.ones(1, 1, rows, dtype=torch.int32), torch.ones(1, 1, columns, dtype=torch.int32)
    places, of_places = (torch.zeros(1, 1, *shape, dtype=torch.int32) for shape in ((rows, columns), (columns, rows)))
    for each in given[1:]:
        each[:, :, 16:] = math.nan
    found = run(attention(["", ""], blocks=True), tmp_path, *given, counts, places, of_keys, of_places)
    first = [given[0], *(each[:, :, :16] for each in given[1:])]
    torch.testing.assert_close(found[0], expected(*first, causal=False, factor=1.0)[0])


def test_an_index_out_of_range_is_reported(tmp_path: Path) -> None:
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
    found = run(graph, tmp_path, *given, torch.arange(LENGTH) % 4, table)
    torch.testing.assert_close(found[0], expected(*given, causal=False, factor=1.0)[0])  # a row's bias changes nothing
    with pytest.raises(IndexError):
        run(graph, tmp_path, *given, torch.arange(LENGTH) % 5, table)


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
