"""numpy functions for a few externs of ATen, for `loopir.interpret` and `loopir.testing.prim_meaning`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loopir.numpy_ops import Array


def _sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    order = np.argsort(-x if descending else x, axis=dim, kind="stable")
    return np.take_along_axis(x, order, dim), order


EXTERNS: dict[str, Callable[..., Any]] = {
    "aten.mm.default": lambda a, b: a @ b,
    "aten.bmm.default": lambda a, b: a @ b,
    "aten.addmm.default": lambda c, a, b: c + a @ b,
    "aten.sort.default": _sort,
    "aten.cumsum.default": lambda x, dim, dtype=None: np.cumsum(x, axis=dim, dtype=dtype),
    "aten.cumprod.default": lambda x, dim, dtype=None: np.cumprod(x, axis=dim, dtype=dtype),
}
