"""Attention with dropout, written out, is what torch gives on a CPU: values, random numbers, gradients."""

import pytest
import torch

from absint import AbstractMode, AbstractTensor
from absint.forms import attention as forms
from absint.forms.attention import attention
from absint.meta import contiguous
from absint.symbolic import ShapeEnv, make_size

MASKS = {
    "none": lambda *shape: None,
    "added": lambda *shape: torch.randn(*shape),
    "boolean": lambda *shape: torch.rand(*shape) > 0.3,
}
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "negative scale": {"scale": -0.3},
    "heads in groups": {"enable_gqa": True},
}


def operands(option, dtype=torch.float32):
    heads = 2 if option == "heads in groups" else 4
    shapes = (2, 4, 5, 8), (2, heads, 7, 8), (2, heads, 7, 8)
    return [torch.randn(shape, dtype=torch.float32).to(dtype).requires_grad_() for shape in shapes]


def same_twice(sides, call, other):
    """Results of both calls, each with the same random numbers, and their gradients."""
    for function in (call, other):
        torch.manual_seed(3)
        result = function(*sides)
        yield result, *torch.autograd.grad(result.float().square().sum(), sides)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_written_out(option, mask, dtype):
    if option == "causal" and mask != "none":
        pytest.skip("torch refuses both")
    torch.manual_seed(0)
    options, sides, given = OPTIONS[option], operands(option, dtype), MASKS[mask](5, 7)
    given = given.to(dtype) if mask == "added" else given
    both = same_twice(
        sides,
        lambda *sides: forms.written_out(
            *sides, given, 0.4, options.get("is_causal", False), options.get("scale"), options.get("enable_gqa", False)
        ),
        lambda *sides: torch.nn.functional.scaled_dot_product_attention(*sides, given, 0.4, **options),
    )
    for found, expected in zip(*both, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mask", [False, True])
def test_sizes_stay_symbols(option, mask, monkeypatch):
    if option == "causal" and mask:
        pytest.skip("torch refuses both")
    monkeypatch.setattr(forms, "takes_symbols", lambda: False)  # as before torch 2.13, whose C++ would fix them
    env = ShapeEnv()
    n, length, depth = (make_size(env, env.create(name, hint)) for name, hint in (("n", 4), ("l", 6), ("d", 8)))
    heads = 2 if option == "heads in groups" else 4
    with AbstractMode():
        query, key, value = (
            AbstractTensor(contiguous((n, count, length, depth), torch.float32)) for count in (4, heads, heads)
        )
        given = AbstractTensor(contiguous((length, length), torch.bool)) if mask else None
        result = attention(query, key, value, given, 0.4, **OPTIONS[option])
    assert result.shape == (n, 4, length, depth)
    assert not any(relation.operator == "==" for relation in env.relations)


def test_what_does_not_fit_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(forms, "takes_symbols", lambda: False)
    env = ShapeEnv()
    n = make_size(env, env.create("n", 4))
    with AbstractMode():
        query = AbstractTensor(contiguous((n, 4, 5, 8), torch.float32))
        other = AbstractTensor(contiguous((n, 4, 5, 8), torch.float64))
        with pytest.raises(RuntimeError, match="same dtype"):
            attention(query, other, query, dropout_p=0.4)
