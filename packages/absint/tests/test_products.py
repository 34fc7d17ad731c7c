"""Products of many dimensions, written out, are what `torch.matmul` gives: values, strides, gradients."""

import pytest
import torch

from absint import AbstractMode, AbstractTensor, abstract_call
from absint.forms import symbolic_form
from absint.forms.products import linear, matmul, product
from absint.meta import contiguous, from_tensor
from absint.symbolic import ShapeEnv, make_size

SHAPES = [
    ((4, 3, 5), (5, 2)), ((4, 3, 5), (5,)), ((5,), (4, 5, 3)), ((2, 5), (4, 5, 3)), ((4, 3, 5), (4, 5, 2)),
    ((2, 4, 3, 5), (4, 5, 2)), ((1, 3, 5), (4, 5, 2)), ((2, 1, 3, 5), (7, 5, 2)), ((2, 4, 3, 5), (5, 2)),
    ((0, 3, 5), (5, 2)), ((4, 3, 5), (4, 5, 1)),
]  # fmt: skip
GRADIENTS = [(False, False), (True, False), (False, True), (True, True)]


def operand(shape, requires_grad, is_turned):
    if is_turned and len(shape) > 2:
        return torch.randn(*shape[:-3], shape[-2], shape[-3], shape[-1]).transpose(-2, -3).requires_grad_(requires_grad)
    return torch.randn(shape, requires_grad=requires_grad)


@pytest.mark.parametrize("is_turned", [False, True], ids=["contiguous", "turned"])
@pytest.mark.parametrize("gradients", GRADIENTS, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_product(shapes, gradients, is_turned):
    left, right = (operand(shape, wanted, is_turned) for shape, wanted in zip(shapes, gradients, strict=True))
    found, expected = product(left, right), torch.matmul(left, right)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
    wanted = [side for side in (left, right) if side.requires_grad]
    if wanted:
        weight = torch.randn_like(expected)
        both = [torch.autograd.grad((result * weight).sum(), wanted) for result in (found, expected)]
        torch.testing.assert_close(both[0], both[1])


def test_what_takes_numbers_is_left_to_torch():
    x = torch.randn(3, 4)
    assert torch.equal(matmul(x, x.t()), x @ x.t())
    assert torch.equal(linear(x, x, torch.ones(3)), torch.nn.functional.linear(x, x, torch.ones(3)))
    with pytest.raises(RuntimeError, match="both arguments to matmul"):
        matmul(x, torch.tensor(1.0))


@pytest.mark.parametrize("shape", [(3,), (4, 2, 3)], ids=str)
def test_a_bias_is_added_in_place(shape):
    with AbstractMode():
        weight = AbstractTensor(contiguous((5, 3), torch.float32))
        x = AbstractTensor(contiguous(shape, torch.float32))
        with pytest.raises(RuntimeError, match=r"broadcast shape|does not fit"):
            linear(x, weight, AbstractTensor(contiguous((2, *shape[:-1], 5), torch.float32)))
        bias = AbstractTensor(contiguous((5,), torch.float64))
        if len(shape) == 3:
            assert linear(x.transpose(0, 1), weight, bias).dtype is torch.float32
    operands = torch.randn(4, 2, 3).transpose(0, 1), torch.randn(5, 3)
    assert torch.nn.functional.linear(*operands, torch.randn(5, dtype=torch.float64)).dtype is torch.float32


def test_so_are_those_of_multi_head_attention():
    call = torch.nn.functional.multi_head_attention_forward
    query, key, value = (torch.ones(2, 3, 2).transpose(0, 1) for _ in range(3))
    biases, out = torch.ones(6), (torch.ones(2, 2), torch.ones(2))
    operands = query, key, value, 2, 1, torch.ones(5, 2), biases, None, None, False, 0.0, *out
    with pytest.raises(RuntimeError, match="broadcast shape"):
        call(*operands)
    types = [AbstractTensor(from_tensor(x)) if isinstance(x, torch.Tensor) else x for x in operands]
    with pytest.raises(RuntimeError, match="does not fit"):
        abstract_call(call, tuple(types), mode=AbstractMode())


def test_sizes_stay_symbols():
    env = ShapeEnv()
    n, m = (make_size(env, env.create(name, hint)) for name, hint in (("n", 4), ("m", 6)))
    with AbstractMode():
        x = AbstractTensor(contiguous((n, m, 8), torch.float32))
        weight = AbstractTensor(contiguous((5, 8), torch.float32))
        bias = AbstractTensor(contiguous((5,), torch.float32))
        assert linear(x, weight).shape == (n, m, 5)
        for input in (x, x.transpose(0, 1), x[None], x.transpose(0, 1)[None]):
            assert linear(input, weight, bias).shape == (*input.shape[:-1], 5)
        attention = symbolic_form(torch.nn.functional.multi_head_attention_forward)
        weights = [AbstractTensor(contiguous(shape, torch.float32)) for shape in ((24, 8), (24,), (8, 8), (8,))]
        given = (x, x, x, 8, 2, *weights[:2], None, None, False, 0.0, *weights[2:])
        assert attention(*given, need_weights=False)[0].shape == (n, m, 8)
        assert matmul(x, x.transpose(1, 2)).shape == (n, m, m)
        assert matmul(x[:, None], x.transpose(1, 2)[:, None]).shape == (n, 1, m, m)
    assert not any(relation.operator == "==" for relation in env.relations)
