"""A Hypothesis strategy of whole programs that call whatever there are samples of.

    program  ::= call+ finish+       # a function on inputs of its own, then something fused with each float result
    function ::= row of torch's operator database (OpInfo) | ATen operator that has a decomposition, off its schema

What reaches no other strategy is drawn here: convolutions, losses, pooling, and what their backwards call. Needs
"stagefold[testing]".
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from absint.targets import resolve
from absint.testing.opinfo import op_infos, sample_inputs
from aotgrad.testing import capture_by_torch_function
from primops.testing.schema_samples import schema_samples, schema_targets
from stagewire.capture import Capture
from stagewire.errors import StageError

__all__ = ["DTYPES", "REFUSED", "sampled_functions", "sampled_programs"]

DTYPES = ("float32", "float32", "float64", "bfloat16", "int64", "bool")
REFUSED = (
    "allclose", "argwhere", "as_strided_partial", "batch_norm_without_cudnn", "bfloat16", "bincount", "bmm_triton",
    "combinations", "cond", "corrcoef", "cov", "cross_entropy_chunked", "ctc_loss", "efficient_attention", "eig",
    "empty", "equal", "flash_attention", "gaussian_nll", "half", "imag", "index_fill", "item",
    "lowrank", "masked_select", "multi_head", "narrow", "nonzero", "one_hot", "pca", "repeat_interleave",
    "resize", "scaled_mm", "segment_reduce", "silu_complex", "sparse", "stft", "svd", "tensor_split", "unique",
    "view.dtype", "view_as_real", "with_distance",
)  # fmt: skip
"""Words in the names of functions that a graph cannot hold (data decides a size, sparse tensors, calls of Python), that
take complex numbers alone, leave memory undefined, have no one answer (eigenvectors), or see how wide floats are."""

_FINISHES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda y: y,
    lambda y: y * y.sigmoid(),
    lambda y: y.softmax(-1) + 1,
    lambda y: F.layer_norm(y, y.shape[-1:]) * 2,
    lambda y: (y - y.amax(-1, keepdim=True)).exp().sum(-1),
)
"""What reads a float result: nothing, a pointwise op, and kernels of two and more sections."""
_STEADY: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    *_FINISHES[:3],
    lambda y: F.layer_norm(y, y.shape[-1:], eps=0.5) * 2,
    lambda y: (y - y.amax(-1, keepdim=True)).sigmoid().sum(-1),
)
"""The same, of which none enlarges rounding: where eager's is another, as it is between ops in half precision."""

UNSTEADY = (
    "complex", "cdouble", "group_norm", "grid_sampler", "sinc", "hardtanh", "relu6", "std_mean", "var_mean", "ldexp",
)  # fmt: skip
"""Words in the names of functions of which eager itself has other answers for nan and inf here than there; and ldexp,
whose strides are not always eager's where the layouts of its operands differ."""
_ALTERED = ("plain", "plain", "grid", "steps", "columns", "hostile")
HOSTILE = (0.0, math.nan, -0.0, math.inf, 1.0, -math.inf, 1e-30, -1.0)

_REFUSALS = (StageError, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError)
SAMPLES = 12
"""Of a function in a dtype, at most."""
_Call = tuple[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]]]


@cache
def _rows() -> dict[str, Any]:
    """The rows of the database that a program may call, by name and variant."""
    rows = [info for info in op_infos() if info.op and not any(word in info.formatted_name for word in REFUSED)]
    return {info.formatted_name: info for info in rows}


@cache
def sampled_functions() -> tuple[str, ...]:
    """What a program may call: rows of the database by name and variant, then ATen operators ("aten.add.Scalar")."""
    operators = [target for target in schema_targets() if not any(word in target for word in REFUSED)]
    return (*sorted(_rows()), *operators)


@st.composite
def sampled_programs(
    draw: st.DrawFn,
    least: int = 5,
    most: int = 11,
    functions: Sequence[str] = (),
    dtypes: Sequence[str] = DTYPES,
    altered: bool = False,
) -> tuple[Capture, list[torch.Tensor]]:
    """A capture of a program of `least` to `most` calls, of these functions if any are named, and inputs for it.

    The capture is named after what it calls (`capture.code.name`). altered: inputs may lie otherwise in memory than
    the samples do, and have other values.
    """
    known = functions or sampled_functions()
    calls: list[_Call] = []
    # Numbers of one seed, of four parts: hypothesis likes to draw the same number again.
    seed = st.integers(0, 2**32 - 1)
    order = random.Random(f"{[draw(seed) for _ in range(4)]}")
    names: list[str] = []
    for _ in range(order.randint(least, most)):
        name = order.choice(known)
        found = _sample(order, name, dtypes)
        calls += found
        names += [name] * len(found)
    assume(calls)
    leaves, tree = tree_flatten([arguments for _, arguments in calls])
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
    plain = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors.values()]
    kinds = _ALTERED[: -2 if any(word in name for name in names for word in UNSTEADY) else None]
    given = [_altered(tensor, order.choice(kinds), order) for tensor in plain] if altered else plain
    finishes = [order.randrange(len(_FINISHES)) for _ in calls]

    def program(*inputs: torch.Tensor) -> list[Any]:
        own = dict(zip(tensors, inputs, strict=True))
        filled = tree_unflatten([own.get(id(leaf), leaf) for leaf in leaves], tree)
        results: list[Any] = []
        for (function, _), (args, kwargs), finish in zip(calls, filled, finishes, strict=True):
            result = function(*args, **kwargs)
            if _is_finished(result):
                is_steady = altered or result.dtype.itemsize == 2
                result = (_STEADY if is_steady else _FINISHES)[finish](result)
            results.append(result)
        return results

    program.__name__ = ", ".join(names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            capture, inputs = capture_by_torch_function(program, given)
        except _REFUSALS:  # a matrix that is no longer definite, a probability above one
            given = plain
            capture, inputs = capture_by_torch_function(program, given)
    assert len(inputs) == len(given), "a program reached a tensor that it was not given"
    return capture, given


def _altered(tensor: torch.Tensor, kind: str, order: random.Random) -> torch.Tensor:
    """A tensor as it is, in other steps, or of floats on a grid, where ties and zeros are, or with nan and inf.

    What shares memory with itself stays so.
    """
    if tensor.layout is not torch.strided or 0 in tensor.stride() or not tensor.numel():
        return tensor
    values = tensor.detach()
    if kind == "steps":
        memory = values.new_zeros(*values.shape, 2)
        values = memory[..., 1].copy_(values)
    elif kind == "columns":
        axes = tuple(reversed(range(values.dim())))
        values = values.permute(axes).clone(memory_format=torch.contiguous_format).permute(axes)
    elif kind == "grid" and values.is_floating_point():
        values = (values * 2).round() / 2
    elif kind == "hostile" and values.is_floating_point():
        places = torch.randperm(values.numel(), generator=torch.Generator().manual_seed(order.randrange(1 << 30)))
        flat = values.flatten().clone()
        flat[places[: len(HOSTILE)]] = torch.tensor(HOSTILE, dtype=values.dtype)[: values.numel()]
        values = torch.empty_like(values).copy_(flat.view(values.shape))
    return values.requires_grad_(tensor.requires_grad)


def _is_finished(result: Any) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and result.layout is torch.strided
        and result.is_floating_point()
        and result.dim() > 0
        and result.numel() > 0
    )


def _sample(order: random.Random, name: str, dtypes: Sequence[str]) -> tuple[_Call, ...]:
    """A call of a function on one of its samples; none where eager or a document cannot have it."""
    if name not in _rows():
        return ((resolve(name), order.choice(schema_samples(name))),)
    supported = _rows()[name].supported_dtypes("cpu")
    allowed = [dtype for dtype in dtypes if getattr(torch, dtype) in supported]
    return _tried(name, order.choice(allowed), order.randrange(SAMPLES)) if allowed else ()


@cache
def _tried(name: str, dtype: str, number: int) -> tuple[_Call, ...]:
    info = _rows()[name]
    try:
        found = _samples(name, dtype)
        sample = found[number % len(found)]
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        own_args, own_kwargs = tree_map(_own, (args, kwargs))
        given = [leaf for leaf in tree_flatten((own_args, own_kwargs))[0] if isinstance(leaf, torch.Tensor)]
        _, inputs = capture_by_torch_function(lambda *_: info.op(*own_args, **own_kwargs), given)
    except _REFUSALS:
        return ()
    return ((info.op, (args, kwargs)),) if len(inputs) == len(given) else ()


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


@cache
def _samples(name: str, dtype: str) -> list[Any]:
    """Samples, spread over those that there are: neighbours are alike."""
    info = _rows()[name]
    kind = getattr(torch, dtype)
    trained = info.supports_autograd and kind in info.supported_backward_dtypes("cpu")
    state = random.getstate()  # samples draw from it, which hypothesis does not like to see
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = list(itertools.islice(sample_inputs(info, kind, bool(trained)), 6 * SAMPLES))
    random.setstate(state)
    return drawn[:: max(1, len(drawn) // SAMPLES)][:SAMPLES]
