"""Calls of ATen, altered: types are eager's, what it refuses is refused, and what is assumed of symbols is enough."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch.utils._pytree import tree_leaves

pytest.importorskip("expecttest", reason="torch's operator database imports it; it comes with the testing extra")

from absint import DataDependentError, from_tensor
from absint.data_errors import DATA_ERRORS
from absint.errors import NoTypeRule, UnsupportedTensor
from absint.meta import to_wire
from absint.rules import RULES
from absint.testing import OracleMode
from absint.testing.drawn_calls import (
    PARTS,
    REFUSALS,
    TRUSTING,
    Call,
    abstract,
    altered,
    recorded_calls,
    resized,
    run,
    runs,
    seeds,
    sizes_of,
    symbolic,
)
from absint.testing.schema_samples import schema_samples
from stagewire.errors import StageError
from stagewire.expr import evaluate
from stagewire.types import TensorType

RULED = sorted(RULES)
UNKNOWN = (DataDependentError, UnsupportedTensor, NoTypeRule)
LEFT_TO_THE_KERNEL = frozenset((
    "_addmm_activation", "_conj", "_embedding_bag_backward", "_embedding_bag_per_sample_weights_backward",
    "_foreach_addcdiv", "_foreach_addcmul", "_foreach_copy", "_foreach_lerp", "_foreach_sub",
    "_linalg_check_errors", "_pdist_backward", "_pdist_forward", "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate", "_upsample_bilinear2d_aa", "addmv", "addr", "arange", "block_diag",
    "col2im", "convolution", "dist", "embedding_renorm", "fill", "fractional_max_pool2d", "fractional_max_pool3d",
    "full", "linspace", "logspace", "multilabel_margin_loss_backward", "multinomial", "narrow_copy",
    "native_dropout", "native_group_norm", "new_empty_strided", "nll_loss2d_backward", "permute", "rand_like",
    "randint", "randint_like", "randn_like", "roll", "scalar_tensor", "slice", "split_with_sizes_copy",
    "squeeze_copy", "tril_indices", "triu_indices", "view_as_complex",
))  # fmt: skip
"""What these refuse of some operands they refuse when they run; rules let it pass, or raise another class of error."""
STRIDE = re.compile(r" stride=\[[^\]]*\]")
MEMORY = "out of bounds for storage"
"""What an operand's type does not say."""
OTHERWISE = frozenset((
    "_conj_physical.default", "_foreach_copy.default", "_foreach_sub.List", "_prelu_kernel.default",
    "_unsafe_masked_index.default", "binary_cross_entropy.default", "binary_cross_entropy_backward.default",
    "binary_cross_entropy_with_logits.default", "bmm.default", "hardtanh.default", "kthvalue.default",
    "lift.default", "linspace.Tensor_Scalar", "logspace.Scalar_Tensor", "lu_unpack.default",
    "masked_scatter.default", "new_empty_strided.default", "pow.Scalar", "rrelu_with_noise_functional.default",
    "rsub.Tensor", "select_scatter.default", "slice_scatter.default", "upsample_trilinear3d_backward.default",
    "view_copy.default",
))  # fmt: skip
"""Rules that are stricter than eager, or of another layout or memory, for operands without elements, of other layouts
each or of dtypes that no public function passes on."""
UNGUARDED = ("aten.col2im.default", "aten.fractional_max_pool3d.default")
"""Of a symbolic size, the kernel refuses what does not fit when it runs."""


def decided_by_data(call: Call) -> bool:
    return call.target.split(".")[1] in DATA_ERRORS or ".".join(call.target.split(".")[:2]) in DATA_ERRORS


def check(call: Call) -> None:
    """Types, strides and aliases of results are eager's; a call that eager refuses is refused with the same class."""
    oracle, refused, result = OracleMode(), None, None
    try:
        with oracle:
            result = run(call)
    except REFUSALS as error:
        refused = error
    if refused is not None:
        check_refusal(call, refused)
    elif call.target.removeprefix("aten.") not in OTHERWISE:
        is_empty = any(not x.numel() for x in tensors(call))
        wrong = [m for m in oracle.mismatches if not is_empty or STRIDE.sub("", m.ruled) != STRIDE.sub("", m.eager)]
        assert not wrong, "\n".join(map(str, wrong))
        check_offsets(call, result)


def check_refusal(call: Call, refused: Exception) -> None:
    if decided_by_data(call) or call.target.split(".")[1] in LEFT_TO_THE_KERNEL or MEMORY in str(refused):
        return
    try:
        made = abstract(call)
    except UNKNOWN:
        return
    except (*REFUSALS, StageError) as error:
        ours = error
    else:
        raise AssertionError(f"{call} gives {made}, but eager refuses: {refused}")
    assert issubclass(type(refused), getattr(ours, "eager", type(ours))), f"{call}: {ours!r} for {refused!r}"


def check_offsets(call: Call, result: Any) -> None:
    """Results of their own memory begin where eager's do."""
    try:
        made = tree_leaves(abstract(call))
    except UNKNOWN:
        return
    for ours, eager in zip(made, tree_leaves(result), strict=True):
        if isinstance(eager, torch.Tensor):
            assert ours.storage_offset() == eager.storage_offset(), f"{call}: {ours}"


def check_with_symbols(call: Call, order: random.Random) -> None:
    """One size as a symbol: where the relations hold that were assumed, types are eager's at another size, too."""
    sizes = sizes_of(call)
    if not sizes:
        return
    old = order.choice(sizes)
    try:
        found = symbolic(call, old)
    except (*UNKNOWN, *REFUSALS, StageError):
        return
    for new in (old, old + 1, 2 * old, old - 1):
        if found.accepts(new):
            try:
                result = run(resized(call, old, new))
            except REFUSALS as error:
                if MEMORY in str(error) or decided_by_data(call):
                    continue
                raise AssertionError(f"{call} is assumed to be right at {new}") from error
            expected = [to_wire(from_tensor(x)) if isinstance(x, torch.Tensor) else None for x in tree_leaves(result)]
            values = {"n": new}
            assert [at(type, values) for type in found.results] == [at(type, {}) for type in expected], f"{call}, {new}"


def at(type: TensorType | None, values: dict[str, int]) -> Any:
    """A type at sizes; strides where there is more than one element."""
    if type is None:
        return None
    shape = [evaluate(n, values) for n in type.shape]
    stride = [evaluate(step, values) for step in type.stride]
    return type.dtype, shape, [step for n, step in zip(shape, stride, strict=True) if n > 1 and 0 not in shape]


def tensors(call: Call) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_calls_of_the_database(part: int, seed: int) -> None:
    order = random.Random(seed)
    for calls in recorded_calls(part, PARTS).values():
        for call in calls:
            check(altered(call, order))


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_symbolic_sizes(part: int, seed: int) -> None:
    order = random.Random(seed)
    for target, calls in recorded_calls(part, PARTS).items():
        if target not in UNGUARDED and not any(word in target for word in TRUSTING):
            check_with_symbols(order.choice(calls), order)


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_calls_off_the_schemas(part: int, seed: int) -> None:
    order = random.Random(seed)
    for target in RULED[part::PARTS]:
        for args, kwargs in schema_samples(target):
            check(altered(Call(target, args, kwargs), order))
