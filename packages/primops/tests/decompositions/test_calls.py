"""Decompositions around calls of ATen give the same numbers, forward and backward."""

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
    "some chosen, turned": lambda: torch.zeros(4, 3).masked_scatter(torch.rand(4, 3) > 0.4, _table(20)),
    "slopes in the gradient": lambda: F.rrelu(_table(40), 0.1, 0.4, training=True),
    "slopes all alike": lambda: F.rrelu(_table(40), 0.2, 0.2, training=True),
    "slopes that are not alike": lambda: torch.ops.aten.rrelu_with_noise_backward(
        _table(40).detach(), _table(40).detach(), torch.rand(40), 0.2, 0.2, True, False
    ),
    "outer products": lambda: (torch.randn(3, 1).bfloat16() @ torch.randn(1, 5).bfloat16()) @ _table(5, 1).bfloat16(),
    "batches of outer products": lambda: torch.einsum("bi,bj->bij", _table(2, 3), _table(2, 4)),
    "scaled outer products": lambda: torch.addr(_table(4), _table(3), _table(4), beta=0.5, alpha=2),
    "a matrix and a vector": lambda: _table(3, 5) @ _table(5),
    "a turned matrix and a vector of halves": lambda: torch.randn(5, 3).bfloat16().t() @ torch.randn(5).bfloat16(),
    "nothing added up": lambda: torch.randn(3, 0) @ torch.randn(0),
    "no rows": lambda: torch.randn(0, 3) @ torch.randn(3),
    "added to a vector": lambda: torch.addmv(_table(3), _table(3, 5), _table(5), beta=0.5, alpha=-2),
    "added to a number": lambda: torch.addmv(_table(1), _table(3, 5), _table(5)),
    "a number and no rows": lambda: torch.addmv(torch.ones(1), torch.zeros(0, 5), torch.ones(5), beta=0.5),
    "in place of nan": lambda: torch.addmv(torch.full((3,), torch.nan), _table(3, 5), _table(5), beta=0),
    "a diagonal of another dtype": lambda: torch.diagonal_scatter(torch.ones(3, 4), _table(3).double()),
    "weights of classes in a row": lambda: F.nll_loss(_table(2, 3, 4, 5), torch.ones(2, 4, 5).long(), torch.rand(1, 3)),
    "two vectors": lambda: torch.dot(_table(9), _table(9)) + torch.vdot(_table(9), _table(9)),
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


@pytest.mark.parametrize(("depth", "target"), [(1, "prims.mul"), (2, "aten.bmm.default")])
def test_products_of_depth_one_are_no_calls(depth: int, target: str) -> None:
    graph = parse_graph(f"""
        input %a: f32[2, 3, {depth}]
        input %b: f32[2, {depth}, 4]
        %y: f32[2, 3, 4] = aten.bmm.default(%a, %b)
        return %y
    """)
    assert lower_graph(graph, TABLE).nodes[-1].target == target


@pytest.mark.parametrize(
    ("left", "right", "device", "stays"),
    [
        ((1, 8), (8, 5), "@cuda:0", False),
        ((5, 8), (8, 1), "@cuda:0", False),
        ((2, 8), (8, 5), "@cuda:0", True),
        ((1, 8), (8, 5), "", True),
        ((3, 1, 8), (3, 8, 5), "@cuda:0", False),
        ((16, 64), (64, 65), "@cuda:0", False),
        ((65, 64), (64, 2), "@cuda:0", False),
        ((3, 8, 64), (3, 64, 64), "@cuda:0", False),
        ((17, 64), (64, 64), "@cuda:0", True),
        ((8, 63), (63, 64), "@cuda:0", True),
        ((8, 64), (64, 63), "@cuda:0", True),
        ((8, 64), (64, 64), "", True),
    ],
)
@pytest.mark.parametrize("added", [False, True])
def test_products_of_few_rows_on_a_gpu_are_sums(
    left: tuple[int, ...], right: tuple[int, ...], device: str, stays: bool, added: bool
) -> None:
    target = ("aten.addmm" if added else "aten.mm") if len(left) == 2 else ("aten.baddbmm" if added else "aten.bmm")
    out = [*left[:-1], right[-1]]
    graph = parse_graph(f"""
        input %a: bf16{list(left)}{device}
        input %b: bf16{list(right)}{device}
        input %c: bf16[{right[-1]}]{device}
        %y: bf16{out}{device} = {target}.default({"%c, " if added else ""}%a, %b)
        return %y
    """)
    targets = [node.target for node in lower_graph(graph, TABLE).nodes]
    assert (f"{target}.default" in targets) == stays
    assert ("prims.sum" in targets) != stays


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scalar", [torch.tensor(0.3337), torch.tensor(0.3337, dtype=torch.float64), 0.3337])
@pytest.mark.parametrize("rounding_mode", [None, "floor", "trunc"])
def test_what_has_no_dimensions_is_not_rounded_to_half_precision(
    dtype: torch.dtype, scalar: Any, rounding_mode: str | None
) -> None:
    torch.manual_seed(0)
    numbers, mode = (torch.randn(2000) * 10).to(dtype), Compare()
    with mode:
        torch.div(numbers, scalar, rounding_mode=rounding_mode)
        torch.mul(numbers, scalar)
        torch.mul(torch.as_tensor(scalar), numbers)
    for target, outcome in mode.outcomes.items():
        assert (outcome.faults, outcome.bitwise) == ([], outcome.compared), target
