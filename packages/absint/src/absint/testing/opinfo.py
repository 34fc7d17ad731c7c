"""torch's own operator database (OpInfo), as an outside oracle: rows, samples on the CPU, and calls that raise."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

__all__ = ["error_inputs", "op_infos", "sample_inputs"]

_SEED = 1234  # torch's own


def op_infos(names: Iterable[str] = (), databases: Iterable[str] = ("op_db",)) -> list[Any]:
    """The rows of these databases that run on a CPU, all or by name (those of jiterator compile CUDA)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as module
    wanted = set(names)
    rows = [info for name in databases for info in getattr(module, name) if not wanted or info.name in wanted]
    return [info for info in rows if info.supported_dtypes("cpu") and not info.name.startswith("jiterator")]


def sample_inputs(info: Any, dtype: torch.dtype, requires_grad: bool = False) -> Iterator[Any]:
    """The samples of a row (`torch.testing._internal.opinfo.core.SampleInput`), each of the same random numbers.

    `info.sample_inputs` gives these, too. It looks for the test that asks first, in the source of every frame on the
    stack, and seeds the generators of devices for each sample, which notes the stack once more.
    """
    return _seeded(info.sample_inputs_func(info, "cpu", dtype, requires_grad))


def error_inputs(info: Any) -> Iterator[Any]:
    """What the row's operator is to refuse (`ErrorInput`)."""
    return _seeded(() if info.error_inputs_func is None else info.error_inputs_func(info, "cpu"))


def _seeded(made: Iterable[Any]) -> Iterator[Any]:
    given = iter(made)
    while True:
        torch.default_generator.manual_seed(_SEED)
        random.seed(_SEED)
        numpy.random.seed(_SEED)
        try:
            one = next(given)
        except StopIteration:
            return
        yield one
