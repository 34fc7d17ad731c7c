"""Operators and their samples, from torch's own database; copies of samples that share nothing."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from absint.testing.opinfo import op_infos, sample_inputs

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool", "complex64")
STRIDE = 8
"""So many samples are drawn for each one that is used: neighbours are alike."""


@dataclass(frozen=True)
class Sample:
    """One call: `op(input, *args, **kwargs)`."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def call(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        return self.input, self.args, self.kwargs


def database() -> dict[str, Any]:
    """The OpInfos that run on a CPU, by name and variant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as methods
    # Samples of random operators seed the generator inside of the operator; the harness seeds it outside.
    methods.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {info.formatted_name: info for info in op_infos()}


def is_supported(info: Any, dtype: str) -> bool:
    return getattr(torch, dtype) in info.supported_dtypes("cpu")


def has_gradient(info: Any, dtype: str) -> bool:
    return bool(info.supports_autograd and getattr(torch, dtype) in info.supported_backward_dtypes("cpu"))


def draw(info: Any, dtype: str, count: int) -> list[Sample]:
    """`count` samples, the same in every run, at a step; and the first of them with gaps in its memory, of nan."""
    made = sample_inputs(info, getattr(torch, dtype), has_gradient(info, dtype))
    drawn = list(itertools.islice(made, STRIDE * count))
    step = max(1, len(drawn) // count)
    chosen = drawn[::step][:count]
    return [_sample(s) for s in (*chosen, *_with_gaps(chosen[:1]))]


def _with_gaps(samples: list[Any]) -> list[Any]:
    try:
        return [s.noncontiguous() for s in samples]
    except (RuntimeError, TypeError, AssertionError):
        return []  # a sparse tensor, a list of something


def _sample(s: Any) -> Sample:
    return Sample(s.input, tuple(s.args), dict(s.kwargs))


def copied(samples: Iterable[Sample]) -> list[Sample]:
    """The same samples on memory of their own: leaves with the same sizes, strides and offsets."""
    memo: dict[int, torch.Tensor] = {}

    def copy(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in memo:
            memo[id(x)] = _copy(x)
        return memo[id(x)]

    return [Sample(*(tree_map(copy, part) for part in s.call())) for s in samples]


def _copy(x: torch.Tensor) -> torch.Tensor:
    if x.layout is not torch.strided or x.is_conj() or x.is_neg():
        return x.detach().clone().requires_grad_(x.requires_grad)
    own = torch.empty(0, dtype=x.dtype, device=x.device).set_(
        x.detach().untyped_storage().clone(), x.storage_offset(), x.shape, x.stride()
    )
    return own.requires_grad_(x.requires_grad)


def widened(samples: Iterable[Sample]) -> list[Sample]:
    """Copies in float64 (complex128), dtypes among the arguments too."""
    wide = {
        torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64,
        torch.complex64: torch.complex128,
    }  # fmt: skip

    def widen(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in wide:
            return x.detach().to(wide[x.dtype]).requires_grad_(x.requires_grad)
        return wide.get(x, x) if isinstance(x, torch.dtype) else x

    return [Sample(*(tree_map(widen, part) for part in s.call())) for s in copied(samples)]


def tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among values, in order."""
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


Program = Callable[[Callable[..., Any], Any], list[Any]]


def program(op: Callable[..., Any], calls: Any) -> list[Any]:
    """What is compiled: all samples of an operator in one frame."""
    return [op(input, *args, **kwargs) for input, args, kwargs in calls]
