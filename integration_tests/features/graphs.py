"""What becomes part of the graph: control flow, transforms, custom operators, gradients, modules, optimizers."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from integration_tests.features.probe import Probes, matrix

flow = Probes("Control flow as ops")


@flow("torch.cond", trains=True)
def cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > -100, lambda x: x.sin() * 2, lambda x: x.cos(), (x,))


@flow("torch.cond with closures, nested", trains=True)
def nested_cond() -> Any:
    weight = torch.ones(8)

    def program(x: Tensor) -> Tensor:
        y = x * 2

        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.max() > 1, lambda x: x * weight, lambda x: x - weight, (x,))

        return torch.cond(x.min() < 0, inner, lambda x: x + y, (x,))

    return program, lambda size: (matrix(size),)


@flow("while_loop", trains=True)
def loop() -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    def program(x: Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 0.5 + 1), (start, x))

    return program, lambda size: (matrix(size),)


@flow("scan", trains=True)
def scan() -> Any:
    from torch._higher_order_ops.scan import scan as run

    def program(x: Tensor) -> Any:
        return run(lambda carry, row: (carry * 0.5 + row, carry.sin()), x[0], x, dim=0)

    return program, lambda size: (matrix(size),)


@flow("associative_scan", trains=True)
def associative() -> Any:
    from torch._higher_order_ops.associative_scan import associative_scan

    def program(x: Tensor) -> Tensor:
        return associative_scan(lambda a, b: a * 0.5 + b, x, dim=0, combine_mode="generic")

    return program, lambda size: (matrix(size),)


@flow("map", trains=True)
def mapped() -> Any:
    from torch._higher_order_ops.map import map as run

    return (lambda x: run(lambda row, by: row * by + 1, x, x[0].clone())), lambda size: (matrix(size),)


transforms = Probes("Transforms")


@transforms("torch.func.grad and vmap")
def per_sample() -> Any:
    weight = torch.linspace(0, 1, 8)

    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return (weight * row).sum().sin()

    return (lambda x: torch.vmap(torch.func.grad(loss), (None, 0))(weight, x)), lambda size: (matrix(size),)


@transforms("jacobians and Hessians")
def derivatives(x: Tensor) -> Any:
    return torch.func.jacrev(torch.sin)(x[0]), torch.func.hessian(lambda y: (y**3).sum())(x[1])


@transforms("torch.func.jvp")
def pushed(x: Tensor) -> Any:
    return torch.func.jvp(lambda y: y.sin() * y, (x,), (torch.ones_like(x),))


@transforms("torch.func.functional_call")
def functional() -> Any:
    module = nn.Linear(8, 4)
    weights = {name: value.detach() * 2 for name, value in module.named_parameters()}
    return (lambda x: torch.func.functional_call(module, weights, (x,))), lambda size: (matrix(size),)


@transforms("autograd.grad inside, with create_graph", trains=True)
def gradients_inside(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    (first,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    return first * x


@transforms("autograd.forward_ad")
def forward_mode(x: Tensor) -> Any:
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        return forward_ad.unpack_dual(dual.sin()).tangent


custom = Probes("Functions and operators of the program")


class Clipped(torch.autograd.Function):
    """Whose gradient is of its own making."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 2 * ctx.limit), None


@custom("autograd.Function", trains=True)
def custom_function(x: Tensor) -> Tensor:
    return Clipped.apply(x * 2, 1.0)


@torch.library.custom_op("feature_probes::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.by, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)


@torch.library.custom_op("feature_probes::filled", mutates_args=("x",))
def filled(x: Tensor, value: float) -> None:
    x.fill_(value)


@custom("a custom operator with a gradient", trains=True)
def operator(x: Tensor) -> Tensor:
    return scaled(x.sin(), 3.0) + 1


@custom("a custom operator that writes")
def writing_operator(x: Tensor) -> Tensor:
    y = x.clone()
    filled(y[0], 2.0)
    return y


@custom("a function that stays eager", outcome="with breaks")
def disabled() -> Any:
    eager = torch.compiler.disable(lambda x: x * 2)
    return (lambda x: eager(x + 1) - 1), lambda size: (matrix(size),)


@custom("allow_in_graph")
def allowed() -> Any:
    @torch.compiler.allow_in_graph
    def kept(x: Tensor) -> Tensor:
        return x.sin()

    return (lambda x: kept(x) + 1), lambda size: (matrix(size),)


@custom("nested_compile_region", trains=True)
def region() -> Any:
    @torch.compiler.nested_compile_region
    def block(x: Tensor) -> Tensor:
        return torch.tanh(x) * 2

    return (lambda x: block(block(x))), lambda size: (matrix(size),)


training = Probes("Gradients and training")


@training("checkpoint", trains=True)
def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda y: torch.sin(torch.exp(y * 0.1)), x, use_reentrant=False)


@training("hooks on tensors", trains=True)
def tensor_hooks(x: Tensor) -> Tensor:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 0.5)
    return y.sin()


@training("saved_tensors_hooks", trains=True, outcome="with breaks")
def saved_hooks(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 1, lambda saved: saved):
        return (x * 2).sin()


@training("backward inside", outcome="with breaks")
def backward_inside() -> Any:
    module = nn.Linear(8, 1)

    def program(x: Tensor) -> Any:
        module.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        return loss.detach(), module.weight.grad.clone()

    return program, lambda size: (matrix(size),)


@training("an optimizer's step", outcome="with breaks")
def optimizer_step() -> Any:
    module = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(module.parameters(), 0.1)

    def program(x: Tensor) -> Any:
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
        return [p.detach().clone() for p in module.parameters()]

    return program, lambda size: (matrix(size),)


@training("modes of gradients")
def modes(x: Tensor) -> Any:
    with torch.no_grad(), contextlib.nullcontext():
        y = x * 2
    with torch.inference_mode():
        z = x + 1
    return y, z.clone(), torch.is_grad_enabled()


modules = Probes("Modules")


@modules("LSTM and GRU", trains=True, on_gpu="with breaks")
def recurrent() -> Any:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTM(8, 6, batch_first=True), nn.GRU(6, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.gru(self.lstm(x[None])[0])[0]

    return Both(), lambda size: (matrix(size),)


@modules("transformer layers", trains=True)
def transformer() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return layer, lambda size: (matrix(size)[None],)


@modules("batch norm in training", trains=True)
def normalised() -> Any:
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU()), lambda size: (matrix(size),)


@modules("parametrizations and weight norm", trains=True)
def parametrised() -> Any:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))
    return module, lambda size: (matrix(size),)


@modules("embeddings and bags")
def embedded() -> Any:
    module = nn.EmbeddingBag(10, 4, mode="mean")
    return module, lambda size: (torch.arange(size) % 10, torch.tensor([0, 2, 4]))


@modules("convolutions, pooling, interpolation", trains=True)
def images() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
            return nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")

    return Net(), lambda size: (matrix(size * 2)[None, None],)
