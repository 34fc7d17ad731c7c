"""Samples of ATen's operators off their schemas alone: arguments that eager takes, for operators that OpInfo lacks.

    sample ::= (args, kwargs)          # tensors of one shape, small numbers; tried in eager, on copies

Overloads with numbers in place of tensors, lists of tensors, copies of views: each is sampled by itself.
Calls between a forward and its backward are left out: their operands belong together, and gradients reach them.
"""

from __future__ import annotations

import itertools
import random
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from absint.targets import resolve

__all__ = ["LEFT_OUT", "schema_samples"]

SHAPES = ((), (3,), (4,), (2, 3), (4, 4), (2, 3, 4), (2, 4, 6, 6), (2, 2, 4, 4, 4))
DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
LEFT_OUT = frozenset((
    "_batch_norm_no_update", "_batch_norm_with_update", "_batch_norm_with_update_functional", "_cdist_forward",
    "_ctc_loss", "_embedding_bag", "_embedding_bag_forward_only", "_fft_c2c", "_fft_c2r", "_fft_r2c",
    "_fused_rms_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_pdist_forward", "_reshape_alias",
    "_scaled_dot_product_flash_attention_for_cpu", "_transformer_encoder_layer_fwd", "_trilinear",
    "_weight_norm_interface", "as_strided", "as_strided_copy", "as_strided_scatter", "empty", "empty_like",
    "empty_permuted", "empty_strided", "linalg_householder_product", "linalg_ldl_solve", "linalg_lu_solve",
    "linalg_solve_triangular", "lu_unpack", "max_unpool2d", "max_unpool3d", "mkldnn_rnn_layer", "native_batch_norm",
    "new_empty", "new_empty_strided", "ormqr", "reflection_pad3d", "segment_reduce", "triangular_solve",
))  # fmt: skip
"""Operators that trust their operands (torch 2.11 ends the process at misfitting pads in three dimensions), or leave
memory undefined; backwards are left out too."""

ATTEMPTS, SAMPLES = 80, 4
Sample = tuple[tuple[Any, ...], dict[str, Any]]


@cache
def schema_samples(target: str) -> tuple[Sample, ...]:
    """Up to `SAMPLES` samples of an operator, the same in every run; none where no attempt is one that eager takes."""
    name = target.split(".")[1]
    if name in LEFT_OUT or "backward" in name:
        return ()
    order, found = random.Random(target), list[Sample]()
    for _ in range(ATTEMPTS):
        sample = _attempt(target, order)
        found += itertools.islice((one for one in _forms(sample) if _runs(target, one)), 1)
        if len(found) == SAMPLES:
            break
    return tuple(found)


def _forms(sample: Sample) -> Iterator[Sample]:
    """A sample, then one for which no gradient is wanted, if that is another."""
    yield sample
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(sample)):
        yield tree_map(lambda leaf: _own(leaf, False), sample)


def _attempt(target: str, order: random.Random) -> Sample:
    shape, dtype = order.choice(SHAPES), order.choice(DTYPES)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in resolve(target)._schema.arguments:  # type: ignore[attr-defined]
        kind, is_optional = re.subn(r"^Optional\[(.*)\]$", r"\1", str(argument.type))
        kind = "dtype" if argument.name == "dtype" else kind
        if argument.has_default_value() and (argument.kwarg_only or order.random() < 0.5):
            value = argument.default_value
        elif is_optional and not argument.has_default_value() and order.random() < 0.3:
            value = None
        else:
            value = _value(kind, argument.name, shape, dtype, order)
        if not argument.kwarg_only:
            args.append(value)
        elif value is not None or not argument.has_default_value():
            kwargs[argument.name] = value
    return tuple(args), kwargs


def _value(kind: str, name: str, shape: tuple[int, ...], dtype: torch.dtype, order: random.Random) -> Any:
    rank = len(shape)
    match kind:
        case "Tensor":
            return _tensor(name, shape, dtype, order)
        case "List[Tensor]":
            return [_tensor(name, shape, dtype, order) for _ in range(2)]
        case "List[Optional[Tensor]]":
            return [_tensor("index", (2,), torch.int64, order)]
        case "number":
            return order.choice((2, 1, 0.5, -1.25))
        case "List[number]":
            return [order.choice((2, 1, 0.5)) for _ in range(2)]
        case "int":
            return order.randrange(-rank, rank) if rank and name.startswith("dim") else order.choice((0, 1, 2))
        case "List[int]":
            fixed = ([0], [-1], [2, 2], [1, 1, 1], [1, 2], [2], [8], [1] * 6)
            return order.choice((list(range(rank)), list(shape), [1] * rank, *fixed))
        case "float":
            return order.choice((0.5, 1.0, 2.0))
        case "bool":
            return order.random() < 0.5
        case "List[bool]":
            return [True] * 3
        case "str":
            return order.choice(("none", "mean", "floor", "trunc", "sum"))
    return torch.float32 if kind == "dtype" else None


def _tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype, order: random.Random) -> torch.Tensor:
    generator = torch.Generator().manual_seed(order.randrange(1 << 30))
    if name in ("index", "indices", "target"):
        return torch.randint(0, 2, shape, generator=generator)
    if name == "scalars":
        return torch.tensor([0.5, 2.0])
    if name in ("mask", "condition"):
        return torch.rand(shape, generator=generator) > 0.5
    if name in ("weight", "bias") and len(shape) > 1 and order.random() < 0.5:
        shape = shape[1:2]
    values = (torch.randn(shape, generator=generator) * 2).to(dtype)
    return values.requires_grad_(dtype.is_floating_point)


def _own(leaf: Any, trained: bool = True) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad and trained)


def _runs(target: str, sample: Sample) -> bool:
    args, kwargs = tree_map(_own, sample)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = [x for x in tree_leaves(resolve(target)(*args, **kwargs)) if isinstance(x, torch.Tensor)]
            roots = [x for x in made if x.requires_grad]
            torch.autograd.backward(roots, [torch.ones_like(x) for x in roots])
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return False
    return bool(made) and all(x.numel() <= 4096 for x in made)
