"""squareplus(x, b) as an operator of torch, and how primops decomposes it. What programs import.

>>> squareplus(torch.tensor([-3.0, 0.0, 3.0]), 16.0)
tensor([1., 2., 4.])
"""

import torch


@torch.library.custom_op("squareplus::squareplus", mutates_args=())
def squareplus(x: torch.Tensor, b: float) -> torch.Tensor:
    return meaning(x, b)


def meaning(x, b):
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return ((wide + (wide * wide + b).sqrt()) * 0.5).to(x.dtype)


@squareplus.register_fake
def _(x, b):
    return torch.empty_like(x)


def save(ctx, inputs, output):
    x, ctx.b = inputs
    ctx.save_for_backward(x)


def derivative(ctx, gradient):
    """d/dx = (1 + x / sqrt(x*x + b)) / 2, in operators that have decompositions."""
    (x,) = ctx.saved_tensors
    return gradient * (1 + x / (x * x + ctx.b).sqrt()) * 0.5, None


squareplus.register_autograd(derivative, setup_context=save)


def decompose(p, x, b):
    """The operator over a builder: one prim."""
    return p.call("squareplus.squareplus", x, float(b))


DECOMPOSITIONS = {"squareplus.squareplus.default": decompose}
MEANINGS = {"squareplus.squareplus": meaning}
TRIALS = {"squareplus": lambda x: squareplus(x, 4.0)}
