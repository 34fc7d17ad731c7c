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
from absint.errors import KernelMissing, NoTypeRule, UnsupportedTensor
from absint.meta import to_wire
from absint.rules import RULES
from absint.testing import OracleMode
from absint.testing.drawn_calls import (
    PARTS,
    REFUSALS,
    Call,
    abstract,
    altered,
    is_backward,
    one_step_away,
    recorded_calls,
    refused_calls,
    resized,
    run,
    run_backward,
    runs,
    seeds,
    sizes_of,
    symbolic,
    trusts,
)
from absint.testing.schema_samples import schema_samples
from stagewire.errors import StageError
from stagewire.expr import evaluate
from stagewire.types import TensorType

RULED = sorted(RULES)
KEPT, STEPS = 6, {"size": 2, "rank": 8, "dtype": 2}
"""Calls of an operator, of the database's; of those that are one step away from one, by kind."""
UNKNOWN = (DataDependentError, UnsupportedTensor, NoTypeRule)
LEFT_TO_THE_KERNEL = frozenset((
    "_conj.default", "_foreach_addcdiv.Tensor", "_foreach_addcmul.Scalar", "_foreach_addcmul.Tensor",
    "_histogramdd_from_bin_cts.default", "_linalg_check_errors.default", "_pdist_forward.default",
    "_trilinear.default", "_unsafe_masked_index.default", "_unsafe_masked_index_put_accumulate.default",
    "_upsample_bicubic2d_aa.default", "_upsample_bilinear2d_aa.default", "addmv.default", "addr.default",
    "bernoulli.Tensor", "bernoulli.default", "bernoulli.p", "binary_cross_entropy_with_logits.default",
    "binomial.default", "cat.default", "col2im.default", "convolution.default", "embedding_renorm.default",
    "empty_strided.default",
    "fractional_max_pool2d.default", "fractional_max_pool3d.default", "isin.Tensor_Tensor", "kthvalue.default",
    "linalg_matrix_exp.default", "masked_fill.Tensor", "multinomial.default", "narrow_copy.default",
    "native_dropout.default", "native_group_norm.default", "new_empty_strided.default", "normal.Tensor_Tensor",
    "normal.float_Tensor", "randint_like.low_dtype", "renorm.default", "rrelu_with_noise.default",
    "rrelu_with_noise_functional.default",
))  # fmt: skip
"""What these refuse of some operands they refuse when they run, by the data or by what no public function passes on;
rules let it pass, or raise another class of error."""
STRIDE = re.compile(r" stride=\[[^\]]*\]")
MEMORY = "out of bounds for storage"
"""What an operand's type does not say."""
OTHERWISE = frozenset((
    "_euclidean_dist.default", "_trilinear.default", "_unsafe_masked_index.default", "as_strided_scatter.default",
    "binary_cross_entropy.default", "binary_cross_entropy_backward.default", "bmm.default", "cholesky.default",
    "histogram.bins_tensor", "lift.default", "linalg_lstsq.default", "linalg_solve_triangular.default",
    "masked_scatter.default", "native_dropout.default", "new_empty_strided.default", "repeat_interleave.Tensor",
))  # fmt: skip
"""Rules that are stricter than eager, or of another layout or memory, for operands without elements, of other layouts
each or of dtypes that no public function passes on."""
UNASKED = "KernelMissing"
"""Eager asks no kernel about a dtype of which there is no element."""
UNGUARDED = ("aten.col2im.default",)
"""Of a symbolic size, the kernel refuses what does not fit when it runs."""


def decided_by_data(call: Call) -> bool:
    return call.target.split(".")[1] in DATA_ERRORS or ".".join(call.target.split(".")[:2]) in DATA_ERRORS


def check(call: Call) -> None:
    """Types, strides and aliases of results are eager's; a call that eager refuses is refused with the same class."""
    oracle, refused, result = OracleMode(), None, None
    try:
        result = run(call, oracle)
    except REFUSALS as error:
        refused = error
    if refused is not None:
        check_refusal(call, refused)
        return
    if not trusts(call.target):
        run_backward(call, oracle)
    is_empty = any(not x.numel() for x in tensors((call.args, call.kwargs, result)))
    found = [m for m in oracle.mismatches if m.name.removeprefix("aten.") not in OTHERWISE]
    wrong = [m for m in found if not is_empty or not (UNASKED in m.ruled or says(m.ruled) == says(m.eager))]
    assert not wrong, "\n".join(map(str, wrong))


def check_refusal(call: Call, refused: Exception) -> None:
    if decided_by_data(call) or is_backward(call.target) or MEMORY in str(refused):
        return
    if call.target.removeprefix("aten.") in LEFT_TO_THE_KERNEL:
        return
    try:
        made = abstract(call)
    except UNKNOWN:
        return
    except (*REFUSALS, StageError) as error:
        ours = error
    else:
        raise AssertionError(f"{call} gives {made}, but eager refuses: {refused}")
    classes = getattr(ours, "eager", type(ours)), type(refused)
    caught = issubclass(*classes[::-1]) or (isinstance(ours, KernelMissing) and issubclass(*classes))  # two are wrong
    assert caught, f"{call}: {ours!r} for {refused!r}"


def says(types: str) -> str:
    """What types say where there are no elements."""
    return STRIDE.sub("", types)


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


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_calls_of_the_database(part: int, seed: int) -> None:
    order = random.Random(seed)
    for calls in recorded_calls(part, PARTS, kept=KEPT).values():
        for call in calls:
            together = is_backward(call.target) and not trusts(call.target)
            check(call)
            check(altered(call, order, ("layout", "first", "together") if together else (), most=2))
    for call in refused_calls(part, PARTS):
        check(altered(call, order, ("layout", "values")))


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_calls_that_differ_in_one_size_or_dtype(part: int, seed: int) -> None:
    order = random.Random(seed)
    calls = [order.choice(calls) for calls in recorded_calls(part, PARTS, kept=KEPT).values()]
    for target in RULED[part::PARTS]:
        samples = schema_samples(target)
        calls += [Call(target, *sample) for sample in order.sample(samples, min(2, len(samples)))]
    for call in calls:
        for kind, steps in one_step_away(call).items():
            for step in order.sample(steps, min(STEPS[kind], len(steps))):
                check(step())


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_symbolic_sizes(part: int, seed: int) -> None:
    order = random.Random(seed)
    for target, calls in recorded_calls(part, PARTS).items():
        if target not in UNGUARDED and not trusts(target) and not is_backward(target):
            check_with_symbols(order.choice(calls), order)


@pytest.mark.parametrize("part", range(PARTS))
@settings(runs, max_examples=1)
@given(seed=seeds)
def test_calls_off_the_schemas(part: int, seed: int) -> None:
    order = random.Random(seed)
    for target in RULED[part::PARTS]:
        for args, kwargs in schema_samples(target):
            check(altered(Call(target, args, kwargs), order, most=2))
