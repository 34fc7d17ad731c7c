"""For each op of `absint.data_errors` a call that eager takes, and one of the same sizes that it refuses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch


class Example(NamedTuple):
    """The arguments of a call, and what takes the place of some of them, by number or name, in the refused one."""

    args: tuple[Any, ...]
    bad: Mapping[int | str, Any]
    kwargs: Mapping[str, Any] = {}

    def arguments(self, *, refused: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call, or of the refused one."""
        bad = self.bad if refused else {}
        args = tuple([bad.get(number, arg) for number, arg in enumerate(self.args)])
        return args, {name: bad.get(name, arg) for name, arg in self.kwargs.items()}


X = torch.arange(12.0).reshape(4, 3) / 12
AT, FAR = torch.tensor([0, 2]), torch.tensor([0, 99])
ROWS, FAR_ROWS = AT[:, None].repeat(1, 3), FAR[:, None].repeat(1, 3)
TWO = torch.ones(2, 3)
SQUARE = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
SINGULAR, INDEFINITE, NAN = torch.zeros(2, 2), -torch.eye(2), torch.full((2, 2), math.nan)
PIVOTS, FAR_PIVOTS = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1, 99], dtype=torch.int32)
WHOLE, ZEROS = torch.tensor([3, 4]), torch.tensor([1, 0])
IMAGE = torch.ones(1, 1, 2, 2)
PLACES, FAR_PLACES = torch.arange(4).reshape(1, 1, 2, 2), torch.arange(96, 100).reshape(1, 1, 2, 2)

EXAMPLES: Mapping[str, Example] = {
    "aten.index_select.default": Example((X, 0, AT), {2: FAR}),
    "aten.gather.default": Example((X, 0, ROWS), {2: FAR_ROWS}),
    "aten.scatter.src": Example((X, 0, ROWS, TWO), {2: FAR_ROWS}),
    "aten.scatter_add.default": Example((X, 0, ROWS, TWO), {2: FAR_ROWS}),
    "aten.scatter_reduce.two": Example((X, 0, ROWS, TWO, "sum"), {2: FAR_ROWS}),
    "aten.index_copy.default": Example((X, 0, AT, TWO), {2: FAR}),
    "aten.index_add.default": Example((X, 0, AT, TWO), {2: FAR}),
    "aten.index_reduce.default": Example((X, 0, AT, TWO, "prod"), {2: FAR}),
    "aten.index_fill.int_Scalar": Example((X, 0, AT, 1.0), {2: FAR}),
    "aten.take.default": Example((X, AT), {1: FAR}),
    "aten.put.default": Example((X, AT, torch.ones(2)), {1: FAR}),
    "aten.index.Tensor": Example((X, [AT]), {1: [FAR]}),
    "aten.index_put.default": Example((X, [AT], TWO), {1: [FAR]}),
    "aten._unsafe_index.Tensor": Example((X, [AT]), {1: [FAR]}),
    "aten._unsafe_index_put.default": Example((X, [AT], TWO), {1: [FAR]}),
    "aten.embedding.default": Example((X, AT), {1: FAR}),
    "aten._embedding_bag.default": Example((X, AT, torch.tensor([0])), {1: FAR}),
    "aten._embedding_bag_forward_only.default": Example((X, AT, torch.tensor([0])), {1: FAR}),
    "aten.max_unpool2d.default": Example((IMAGE, PLACES, [4, 4]), {1: FAR_PLACES}),
    "aten.max_unpool3d.default": Example(
        (IMAGE[None], PLACES[None], [1, 4, 4], [1, 2, 2], [0, 0, 0]), {1: FAR_PLACES[None]}
    ),
    "aten.masked_scatter.default": Example((TWO, TWO > 1, torch.ones(2)), {1: TWO > 0}),
    "aten.nll_loss_forward.default": Example((TWO, AT, None, 1, -100), {1: FAR}),
    "aten.nll_loss2d_forward.default": Example((TWO[:, :, None, None], ROWS[:, :1, None], None, 1, -100),
                                               {1: FAR_ROWS[:, :1, None]}),
    "aten.multi_margin_loss.default": Example((TWO, AT), {1: FAR}),
    "aten.multilabel_margin_loss_forward.default": Example((TWO, ROWS, 1), {1: FAR_ROWS}),
    "aten.binary_cross_entropy.default": Example((X, X), {0: X + 2}),
    "aten.histc.default": Example((X,), {0: X * math.nan}),
    "aten.histogram.bin_ct": Example((X,), {0: X * math.nan}),
    "aten._histogramdd_bin_edges.default": Example((X, [2, 2, 2]), {0: X * math.nan}),
    "aten.linalg_lu_solve.default": Example((SQUARE, PIVOTS, SQUARE), {1: FAR_PIVOTS}),
    "aten.lu_unpack.default": Example((SQUARE, PIVOTS), {1: FAR_PIVOTS}),
    "aten.searchsorted.Tensor": Example((torch.ones(2), TWO), {"sorter": FAR}, {"sorter": torch.tensor([0, 1])}),
    "aten.repeat_interleave.Tensor": Example((WHOLE,), {0: -WHOLE}, {"output_size": 7}),
    "aten.segment_reduce.default": Example((torch.ones(7), "sum"), {"lengths": ZEROS}, {"lengths": WHOLE}),
    "aten.div.Tensor_mode": Example((WHOLE, WHOLE), {1: ZEROS}, {"rounding_mode": "floor"}),
    "aten.floor_divide.default": Example((WHOLE, WHOLE), {1: ZEROS}),
    "aten.remainder.Tensor": Example((WHOLE, WHOLE), {1: ZEROS}),
    "aten.fmod.Tensor": Example((WHOLE, WHOLE), {1: ZEROS}),
    "aten.cholesky.default": Example((SQUARE,), {0: INDEFINITE}),
    "aten.cholesky_inverse.default": Example((SQUARE,), {0: SINGULAR}),
    "aten.linalg_pinv.atol_rtol_tensor": Example((SQUARE,), {0: NAN}),
    "aten.linalg_eig.default": Example((SQUARE,), {0: NAN}),
    "aten._linalg_eigh.default": Example((torch.eye(5),), {0: torch.full((5, 5), math.nan)}),
    "aten._linalg_svd.default": Example((SQUARE,), {0: NAN}),
    "aten.linalg_lstsq.default": Example((SQUARE, SQUARE), {0: NAN}),
    "aten.linalg_cholesky_ex.default": Example((SQUARE,), {0: INDEFINITE}, {"check_errors": True}),
    "aten.linalg_ldl_factor_ex.default": Example((SQUARE,), {0: SINGULAR}, {"check_errors": True}),
    "aten.linalg_inv_ex.default": Example((SQUARE,), {0: SINGULAR}, {"check_errors": True}),
    "aten.linalg_lu_factor_ex.default": Example((SQUARE,), {0: SINGULAR}, {"check_errors": True}),
    "aten._linalg_solve_ex.default": Example((SQUARE, SQUARE), {0: SINGULAR}, {"check_errors": True}),
}  # fmt: skip
"""By overload."""
