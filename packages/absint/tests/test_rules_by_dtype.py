"""Rules of ops that torch's operator database lacks, on operands of every pair of dtypes, against eager."""

import itertools

import pytest
import torch

from absint.rules import RULES
from absint.targets import resolve
from absint.testing import OracleMode

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64,
)  # fmt: skip
NUMBERS = ([1, 2], [1.5, 2.0], [True, False], [2, 2.5])


def holds(call, *args):
    """Whether eager takes the call; every rule that it passes must agree then."""
    oracle = OracleMode()
    try:
        with oracle:
            call(*args)
    except (RuntimeError, NotImplementedError):
        return False
    assert not oracle.mismatches, "\n".join(map(str, oracle.mismatches))
    return True


def taken(call, *operands):
    """The pairs of dtypes that eager takes."""
    pairs = itertools.product(DTYPES, DTYPES)
    return {(a, b) for a, b in pairs if holds(call, operands[0].to(a), operands[1].to(b), *operands[2:])}


def test_products_of_small_integers():
    assert taken(torch.ops.aten._int_mm.default, torch.ones(32, 32), torch.ones(32, 32)) >= {(torch.int8, torch.int8)}


def test_weights_by_their_norms():
    same = {(dtype, dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
    assert taken(torch.ops.aten._weight_norm_interface.default, torch.ones(3, 4), torch.ones(3, 1), 0) >= same


@pytest.mark.parametrize("training", [False, True])
def test_leaky_slopes_at_random_are_row_major(training):
    assert holds(torch.nn.functional.rrelu, torch.randn(3, 4).t(), 0.1, 0.3, training)


@pytest.mark.parametrize("width", [1, 3])
def test_what_is_scattered_by_a_mask_is_row_major(width):
    x = torch.randn(4, width).t()
    assert holds(torch.masked_scatter, x, torch.eye(3, 4).bool(), torch.randn(9))


@pytest.mark.parametrize("exponent", [torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_whole_exponents_keep_the_dtype(dtype, exponent):
    for shape in ((3,), ()):
        assert holds(torch.ldexp, torch.ones(shape, dtype=dtype), torch.ones(3, dtype=exponent))


def operand(argument, first, second, numbers):
    kind = str(argument.type)
    if kind == "List[Tensor]":
        return [torch.ones(2, 3).to(first if argument.name == "self" else second) for _ in range(2)]
    if kind == "List[number]":
        return numbers
    return torch.ones((), dtype=second) if kind == "Tensor" else numbers[0]


@pytest.mark.parametrize("name", [name for name in RULES if "_foreach_" in name])
def test_lists_of_tensors(name):
    call = resolve(name)
    given = [a for a in call._schema.arguments if not a.kwarg_only and not a.has_default_value()]
    calls = itertools.product(DTYPES, (torch.bool, torch.int8, torch.float16, torch.float32), NUMBERS)
    found = [holds(call, *[operand(a, *each) for a in given]) for each in calls]
    assert any(found) or name.endswith(("addcmul.Tensor", "addcdiv.Tensor"))  # they take a tensor of numbers
