"""Every op of torch's own operator database: types, strides and aliases of its ATen calls against eager."""

import itertools

import pytest
import torch
from torch.utils._pytree import tree_leaves

from absint.testing import OracleMode
from absint.testing.opinfo import op_infos, sample_inputs

pytest.importorskip("expecttest", reason="torch's operator database imports it; it comes with the testing extra")

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SAMPLES = range(0, 30, 5)
"""The samples taken per op and dtype."""
INFOS = op_infos()


def samples(info, dtype, differentiable):
    drawn = sample_inputs(info, dtype, differentiable)
    return itertools.islice(drawn, SAMPLES.start, SAMPLES.stop, SAMPLES.step)


def run(info, sample, differentiable):
    result = info.op(sample.input, *sample.args, **sample.kwargs)
    tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    roots = [x for x in tensors if x.requires_grad and x.layout is torch.strided]
    if differentiable and roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.formatted_name)
def test_types_are_those_of_eager(info):
    oracle = OracleMode()
    ran = 0
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        for sample in samples(info, dtype, differentiable):
            with oracle:
                run(info, sample, differentiable)
            ran += 1
    assert not oracle.mismatches, "\n".join(map(str, oracle.mismatches))
    assert ran or not set(DTYPES) & set(info.supported_dtypes("cpu"))
