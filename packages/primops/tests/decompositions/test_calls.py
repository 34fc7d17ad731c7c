"""Ops that become prims with a call: the same numbers, also where the types of results depend on flags and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from primops.decompositions import TABLE
from primops.stage import lower_graph
from primops.testing.opinfo import Compare
from stagewire.parser import parse_graph


def _table(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def _symmetric(n: int) -> Tensor:
    x = torch.randn(3, n, n, dtype=torch.float64)
    return x @ x.mT + n * torch.eye(n, dtype=torch.float64)


_J, _O = torch.tensor([1, 5, 2, 2, 0, 9]), torch.tensor([0, 2, 2, 6])
CALLS: dict[str, Callable[[], Any]] = {
    **{
        f"bags, {mode}, padding {padding}, last {last}": lambda mode=mode, padding=padding, last=last: F.embedding_bag(
            _J, _table(10, 4), _O, mode=mode, padding_idx=padding, include_last_offset=last
        )
        for mode in ("sum", "mean", "max")
        for padding in (None, 2)
        for last in (False, True)
    },
    "weighted bags": lambda: F.embedding_bag(_J, _table(10, 4), _O, mode="sum", per_sample_weights=_table(6)),
    "bags of a turned table": lambda: F.embedding_bag(_J, _table(4, 10).t(), _O, mode="sum"),
    "segments": lambda: torch.segment_reduce(_table(6, 2), "mean", lengths=torch.tensor([2, 0, 4]), initial=0.5),
    **{
        f"sampled at a grid, {mode}, {padding}": lambda mode=mode, padding=padding: F.grid_sample(
            _table(2, 3, 5, 6), _table(2, 4, 4, 2), mode=mode, padding_mode=padding, align_corners=False
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "reflection")
    },
    "sampled at a fixed grid": lambda: F.grid_sample(_table(1, 1, 3, 3), torch.rand(1, 2, 2, 2), align_corners=True),
    "antialiased": lambda: F.interpolate(_table(1, 2, 9, 7), (4, 3), mode="bicubic", antialias=True),
    "folded": lambda: F.fold(_table(2, 8, 4), (3, 5), 2, padding=(0, 0), stride=(1, 3)) * 2,
    "distances": lambda: torch.cdist(_table(2, 30, 3), _table(30, 3), p=1.5),
    "own distances": lambda: F.pdist(_table(5, 3), 3.0),
    "labels": lambda: F.multilabel_margin_loss(
        _table(3, 4), torch.tensor([[1, -1, 0, 2], [3, 0, 1, -1], [-1, 0, 0, 0]]), reduction="none"
    ),
    "sequences": lambda: F.ctc_loss(
        _table(9, 2, 5).log_softmax(-1), torch.tensor([[1, 2, 2], [3, 4, 0]]), (9, 8), (3, 2), reduction="sum"
    ),
    "some chosen, turned": lambda: torch.zeros(4, 3).masked_scatter(torch.rand(4, 3) > 0.4, _table(20)),
    "divisors": lambda: (torch.gcd(_J, _J + 4), torch.lcm(_J, torch.tensor(-6))),
    "mantissas": lambda: torch.frexp(torch.tensor([0.0, -3.5, 1e-40, float("inf")])),
    "counts": lambda: torch.histc(torch.rand(40), bins=7, min=0.1, max=0.7),
    "places": lambda: torch.nonzero_static(torch.tensor([[0, 1], [2, 0]]), size=3),
    "slopes in the gradient": lambda: F.rrelu(_table(40), 0.1, 0.4, training=True),
    "slopes all alike": lambda: F.rrelu(_table(40), 0.2, 0.2, training=True),
    "outer products": lambda: (torch.randn(3, 1).bfloat16() @ torch.randn(1, 5).bfloat16()) @ _table(5, 1).bfloat16(),
    "batches of outer products": lambda: torch.einsum("bi,bj->bij", _table(2, 3), _table(2, 4)),
    "cholesky": lambda: torch.linalg.cholesky(_symmetric(4), upper=True),
    "by cholesky": lambda: torch.cholesky_solve(torch.randn(3, 4, 2).double(), _symmetric(4)),
    "solved": lambda: torch.linalg.solve(_symmetric(4), torch.randn(3, 4).double()),
    "solved from the right": lambda: torch.linalg.solve(_symmetric(4), torch.randn(5, 4).double(), left=False),
    "triangular": lambda: torch.linalg.solve_triangular(_symmetric(4), torch.randn(4, 2).double(), upper=True),
    "factors": lambda: torch.linalg.lu(torch.randn(2, 5, 3)),
    "unpacked": lambda: torch.lu_unpack(*torch.linalg.lu_factor(torch.randn(3, 5)), unpack_data=False),
    "eigenvalues": lambda: torch.linalg.eigvalsh(_symmetric(4)),
    "singular values": lambda: torch.linalg.svd(torch.randn(4, 3), full_matrices=True),
    "reflections": lambda: (torch.linalg.qr(torch.randn(5, 3), "complete"), torch.linalg.qr(torch.randn(3, 5), "r")),
    "determinants": lambda: (torch.linalg.det(_symmetric(3)), torch.linalg.slogdet(_symmetric(3))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_and_its_gradient(name: str) -> None:
    torch.manual_seed(0)
    mode = Compare()
    with mode:
        result = CALLS[name]()
        if isinstance(result, Tensor) and result.requires_grad:
            result.sum().backward()
    assert mode.outcomes
    assert [fault for outcome in mode.outcomes.values() for fault in outcome.faults] == []


def test_bags_become_a_prim() -> None:
    graph = parse_graph("""
        input %w: f64[10, 4]
        input %j: i64[6]
        input %o: i64[3]
        %y: f64[3, 4], %b: i64[6], %s: i64[3], %m: i64[3] = aten._embedding_bag.default(%w, %j, %o, false, 1)
        return %y
    """)
    assert [node.target for node in lower_graph(graph, TABLE).nodes] == ["prims.embedding_bag"]


@pytest.mark.parametrize(("depth", "target"), [(1, "prims.mul"), (2, "aten.bmm.default")])
def test_products_of_depth_one_are_no_calls(depth: int, target: str) -> None:
    graph = parse_graph(f"""
        input %a: f32[2, 3, {depth}]
        input %b: f32[2, {depth}, 4]
        %y: f32[2, 3, 4] = aten.bmm.default(%a, %b)
        return %y
    """)
    assert lower_graph(graph, TABLE).nodes[-1].target == target
