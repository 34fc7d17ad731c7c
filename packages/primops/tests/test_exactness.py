"""What decompositions promise of their bits holds; numerics="eager" decomposes only what gives eager's."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from absint.testing.opinfo import op_infos
from primops.decompositions import TABLE
from primops.exactness import BOUNDS, bound, is_exact, record
from primops.stage import Options, lower_graph
from primops.testing.opinfo import Compare, run_samples
from stagewire.parser import parse_graph

HALVES = ("bfloat16", "float16")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SLOW = ("ctc_loss", "linalg", "lu", "svd", "conv", "special", "sparse", "masked.", "pca_lowrank", "ormqr", "unique")
INFOS: list[Any] = [info for info in op_infos() if not any(word in info.name for word in SLOW)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_each_decomposition_keeps_to_its_bound(seed: int) -> None:
    draw = random.Random(seed)
    info = draw.choice(INFOS)
    dtype = draw.choice([d for d in DTYPES if d in info.supported_dtypes("cpu")] or [None])
    if dtype is None:
        return
    mode = Compare()
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        list(run_samples(mode, info, dtype, samples=2))
    for target, outcome in mode.outcomes.items():
        for name, ulps in outcome.ulps.items():
            assert ulps <= bound(target)[name in HALVES], f"{target} in {name} ({info.name}, {dtype})"


def test_the_record_names_each_decomposition_once() -> None:
    assert set(record()) == set(TABLE)
    assert record()["aten.add.Tensor"] == "bitwise"
    assert record()["aten._softmax.default"] == "4 ulps; 2 in half precision"
    packets = {target.rpartition(".")[0] for target in TABLE}
    assert set(BOUNDS) <= packets, set(BOUNDS) - packets


@pytest.mark.parametrize(
    ("call", "exact"),
    [
        ("aten.add.Tensor(%x, 0.3)", True),
        ("aten.add.Tensor(%x, %x, alpha=0.3)", False),
        ("aten.relu.default(%x)", True),
        ("aten.exp.default(%x)", False),
        ("aten.sum.dim_IntList(%x, [0, 1])", False),
        ("aten.gelu.default(%x)", False),
        ("aten.reflection_pad1d_backward.default(%x, %x, [0, 0])", False),
    ],
)
def test_only_exact_decompositions_stand_for_eager(call: str, exact: bool) -> None:
    result = "bf16[]" if "sum" in call else "bf16[2, 3]"
    graph = parse_graph(f"input %x: bf16[2, 3]\n%y: {result} = {call}\nreturn %y")
    lowered = lower_graph(graph, TABLE)
    assert is_exact(graph.nodes[0].target, lowered.nodes) is exact
    kept = [node.target for node in lower_graph(graph, TABLE, Options(numerics="eager")).nodes]
    assert (graph.nodes[0].target in kept) is not exact


def test_numbers_beside_halves_are_those_that_eager_uses() -> None:
    """Stored in half precision for sums and comparisons, as they are for products."""
    from primops.interpret import interpret

    x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for call, function in {
        "aten.add.Tensor(%x, 0.3)": lambda x: x + 0.3,
        "aten.sub.Tensor(%x, 0.3, alpha=0.7)": lambda x: torch.sub(x, 0.3, alpha=0.7),
        "aten.mul.Tensor(%x, 0.3)": lambda x: x * 0.3,
        "aten.div.Tensor(%x, 0.3)": lambda x: x / 0.3,
    }.items():
        graph = parse_graph(f"input %x: bf16[65536]\n%y: bf16[65536] = {call}\nreturn %y")
        (found,) = interpret(lower_graph(graph), [x])
        assert torch.equal(found.nan_to_num(7), function(x).nan_to_num(7)), call
    for call, function in {"aten.eq.Scalar": torch.eq, "aten.gt.Scalar": torch.gt, "aten.le.Scalar": torch.le}.items():
        graph = parse_graph(f"input %x: bf16[65536]\n%y: b8[65536] = {call}(%x, 0.3)\nreturn %y")
        (found,) = interpret(lower_graph(graph), [x])
        assert torch.equal(found, function(x, 0.3)), call


def test_a_number_less_a_multiple_is_rounded_once() -> None:
    """As eager does, which multiplies and adds."""
    from primops.interpret import interpret

    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    graph = parse_graph("input %x: f32[1000]\n%y: f32[1000] = aten.rsub.Scalar(%x, 1, -1.25)\nreturn %y")
    assert torch.equal(interpret(lower_graph(graph), [x])[0], torch.ops.aten.rsub.Scalar(x, 1, -1.25))


@pytest.mark.parametrize(
    ("call", "stays"),
    [
        ("%y: f32[4] = aten.index_add.default(%x, 0, %i, %z)", True),
        ("%y: i64[3] = aten.scatter_add.default(%i, 0, %i, %i)", False),
        ("%y: f32[4] = aten.cumsum.default(%x, 0)", True),
        ("%y: i64[3] = aten.cumsum.default(%i, 0)", False),
        ("%y: f32[5, 2] = aten.embedding_dense_backward.default(%g, %i, 5, -1, False)", True),
        ("%y: f32[] = aten.sum.dim_IntList(%x, [0])", False),
        ("%y: f32[3] = aten.index.Tensor(%x, [%i])", False),
    ],
)
def test_deterministic_programs_leave_sums_in_any_order_to_aten(call: str, stays: bool) -> None:
    inputs = "input %x: f32[4]\ninput %i: i64[3]\ninput %z: f32[3]\ninput %g: f32[3, 2]\n"
    graph = parse_graph(f"{inputs}{call}\nreturn %y")
    for deterministic in (False, True):
        targets = [node.target for node in lower_graph(graph, options=Options(deterministic=deterministic)).nodes]
        assert any(target.startswith("aten.") for target in targets) == (stays and deterministic)
