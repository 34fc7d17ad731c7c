"""Jagged nested tensors, compiled and eager: values, offsets, ragged sizes, gradients; one program for all lengths."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from torch.utils._pytree import tree_leaves

import stagefold
from bytecap import Broke, Captured, optimize
from stagefold.backends import resolve_backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCHES = ((3, 2, 5), (4, 2, 6), (2, 6, 3, 7))
WEIGHT = torch.linspace(-1, 1, 32).view(4, 8)


def jagged(*lengths: int, columns: int = 8, trains: bool = False) -> Tensor:
    """Of a list: it knows its least and greatest length."""
    parts = [torch.linspace(-2, 2, n * columns).view(n, columns) + n / 10 for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged).requires_grad_(trains)


def packed(*lengths: int, trains: bool = False) -> Tensor:
    """Of values and offsets: it knows no lengths."""
    values = torch.linspace(-2, 2, sum(lengths) * 8).view(-1, 8)
    made = torch.nested.nested_tensor_from_jagged(values, offsets_of(*lengths))
    return made.detach().requires_grad_(trains)


def offsets_of(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def compiled(program: Any, **options: Any) -> tuple[Any, list[Any]]:
    events: list[Any] = []
    backend, _ = resolve_backend("stagefold", None, None, None)
    return optimize(program, backend, on_event=events.append, **{"fullgraph": True, **options}), events


def captures(events: list[Any]) -> int:
    return sum(isinstance(event, Captured) for event in events)


def plain(tensor: Tensor) -> Tensor:
    return tensor.values() if tensor.is_nested else tensor


def assert_same(found: Any, expected: Any, inputs: tuple[Any, Any]) -> None:
    """inputs: of both calls; what holds the offsets of its input does so in both."""
    found, expected = tree_leaves(found), tree_leaves(expected)
    assert len(found) == len(expected)
    known = [{id(t._offsets) for t in tree_leaves(args) if isinstance(t, Tensor) and t.is_nested} for args in inputs]
    for ours, eager in zip(found, expected, strict=True):
        assert type(ours) is type(eager)
        if not isinstance(ours, Tensor):
            assert isinstance(ours, torch.SymInt) or ours == eager
            continue
        assert (ours.requires_grad, ours.is_leaf, ours.dtype) == (eager.requires_grad, eager.is_leaf, eager.dtype)
        tolerance = 0.05 if ours.dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(plain(ours).detach(), plain(eager).detach(), rtol=tolerance, atol=tolerance)
        if ours.is_nested:
            assert torch.equal(ours.offsets(), eager.offsets())
            assert (id(ours._offsets) in known[0]) == (id(eager._offsets) in known[1])
            assert (ours.lengths() is None) == (eager.lengths() is None)
            assert (ours._ragged_idx, ours.size(0)) == (eager._ragged_idx, eager.size(0))
            assert plain(ours).stride() == plain(eager).stride()


def gradients(result: Any, inputs: Any) -> list[Any]:
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    total = sum(plain(leaf).sin().sum() for leaf in results)
    return list(torch.autograd.grad(total, leaves, allow_unused=True)) if leaves and results else []


def compare(program: Any, makes: list[Any], **options: Any) -> list[Any]:
    """Compiled and eager on each of the inputs; returns what happened."""
    run, events = compiled(program, **options)
    for make in makes:
        mine, others = make(), make()
        found, expected = run(*mine), program(*others)
        assert_same(found, expected, (mine, others))
        assert_same(gradients(found, mine), gradients(expected, others), (mine, others))
    return events


PROGRAMS = {
    "pointwise": lambda x: torch.sin(x) * 2 + x.relu(),
    "linear": lambda x: F.linear(x, WEIGHT, torch.ones(4)),
    "product": lambda x: x @ WEIGHT.t(),
    "layer norm": lambda x: F.layer_norm(x, (8,), torch.ones(8), torch.ones(8)),
    "rms norm": lambda x: F.rms_norm(x, (8,)),
    "softmax": lambda x: torch.softmax(x, -1),
    "sum": lambda x: x.sum(),
    "largest": lambda x: x.amax(1),
    "values and offsets": lambda x: (x.values() * 2, x.offsets(), x.offsets() + 1),
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.5),
    "joined": lambda x: torch.cat([x, x * 2], -1),
    "broadcast": lambda x: x + torch.ones(8),
    "heads": lambda x: x.view(x.size(0), x.size(1), 2, 4).transpose(1, 2) * 2,
    "made of its values": lambda x: torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets()),
    "made around its values": lambda x: torch.nested.nested_tensor_from_jagged(x.values(), x.offsets()) * 2,
    "sizes": lambda x: (x * 2, x.size(0), x.size(1), 2 * x.size(1), x.shape, x.stride(), x.dim()),
    "asked": lambda x: x * 2 if x.is_nested and x.layout is torch.jagged and x.shape == x.sin().shape else x * 3,
    "where": lambda x: torch.where(x > 0, x, 0.0) * x.numel(),
    "without a gradient": lambda x: x.detach() * 2 + torch.zeros_like(x),
}


@pytest.mark.parametrize("make", [jagged, packed])
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_serves_all_lengths(name, trains, make):
    makes = [lambda lengths=lengths: (make(*lengths, trains=trains),) for lengths in BATCHES]
    assert captures(compare(PROGRAMS[name], makes)) == 1


def _packed(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, scale: float | None, grad: Any = None) -> Any:
    """Attention of [all lengths, heads, width] within each sequence; given a gradient, those of q, k and v."""
    found, scale = [], scale or q.shape[-1] ** -0.5
    for first, last in itertools.pairwise(offsets.tolist()):
        q_, k_, v_, g = (None if x is None else x[first:last].transpose(0, 1) for x in (q, k, v, grad))
        weights = torch.softmax(q_ @ k_.mT * scale, -1)
        if g is None:
            found.append((weights @ v_,))
            continue
        to_weights = g @ v_.mT
        to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True)) * scale
        found.append((to_scores @ k_, to_scores.mT @ q_, weights.mT @ g))
    return tuple([torch.cat([x.transpose(0, 1) for x in parts]) for parts in zip(*found, strict=True)])


def _flash(q, k, v, offsets, _k, longest, _lk, dropout, causal, mask, *, scale=None):
    assert longest == offsets.diff().max()
    state = (torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), torch.zeros(0))
    return *_packed(q, k, v, offsets, scale), torch.zeros(q.shape[1], q.shape[0]), *state


def _flash_backward(grad, q, k, v, out, sums, offsets, _k, longest, *rest, scale=None):
    assert longest == offsets.diff().max()
    return _packed(q, k, v, offsets, scale, grad)


def _efficient(q, k, v, bias, offsets, _k, longest, _lk, dropout, mask, statistics=False, *, scale=None):
    assert longest == offsets.diff().max()
    sums = torch.zeros(len(offsets) - 1, q.shape[2], -(-longest // 32) * 32 if statistics else 0)
    seed = torch.zeros((), dtype=torch.int64)
    return _packed(q[0], k[0], v[0], offsets, scale)[0][None], sums, seed, seed, longest, longest


def _efficient_backward(grad, q, k, v, bias, out, offsets, _k, longest, _lk, sums, *rest, scale=None):
    assert (longest, sums.shape[2]) == (offsets.diff().max(), -(-longest // 32) * 32)
    return *[x[None] for x in _packed(q[0], k[0], v[0], offsets, scale, grad[0])], None


KERNELS = {
    "flash": {"_flash_attention_forward": _flash, "_flash_attention_backward": _flash_backward},
    "efficient": {"_efficient_attention_forward": _efficient, "_efficient_attention_backward": _efficient_backward},
}


@pytest.fixture
def attention_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch's kernels for packed sequences are of GPUs; where there is none, what is written above stands in."""
    choice = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}[request.param]
    monkeypatch.setattr("torch.nested._internal.sdpa._select_sdp_backend", lambda *_: choice)
    library = torch.library.Library("aten", "IMPL", "CPU")
    if DEVICE == "cpu":
        for name, kernel in KERNELS[request.param].items():
            library.impl(name, kernel)
    yield
    library._destroy()


@pytest.mark.gpu
@pytest.mark.usefixtures("attention_kernel")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("attention_kernel", KERNELS, indirect=True)
def test_attention(trains, request):
    is_half = DEVICE == "cuda" and request.node.callspec.params["attention_kernel"] == "flash"

    def attention(x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (4, 16)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads * 2, heads + 1).transpose(1, 2).flatten(-2)

    def make(lengths: tuple[int, ...]) -> tuple[Tensor]:
        dtype = torch.bfloat16 if is_half else torch.float32
        parts = [torch.linspace(-2, 2, n * 64, device=DEVICE, dtype=dtype).view(n, 64) for n in lengths]
        return (torch.nested.nested_tensor(parts, layout=torch.jagged).requires_grad_(trains),)

    assert captures(compare(attention, [lambda lengths=lengths: make(lengths) for lengths in BATCHES])) == 1


def test_ragged_sizes_that_are_returned():
    run, _ = compiled(lambda x: (x * 2, x.size(1), x.size(1) * 3))
    x = jagged(3, 2, 5)
    y, size, multiple = run(x)
    assert size == x.size(1) == y.size(1)
    assert multiple == 3 * x.size(1)
    assert size != jagged(3, 2, 5).size(1)
    assert (y + x).is_nested  # which eager refuses of others


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@pytest.mark.parametrize("trains", [False, True])
def test_training(trains):
    torch.manual_seed(0)
    module = nn.Sequential(Block(), Block())
    run, events = compiled(module)
    for lengths in BATCHES:
        found = []
        for call in (run, module):
            module.zero_grad()
            x = jagged(*lengths, trains=trains)
            call(x).values().square().mean().backward()
            found.append([p.grad.clone() for p in module.parameters()] + ([plain(x.grad)] if trains else []))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert captures(events) == 1


def shared(*lengths: int) -> tuple[Tensor, Tensor]:
    x = packed(*lengths, trains=True)
    y = torch.nested.nested_tensor_from_jagged(x.values().detach() * 3, x.offsets())
    return x, y.detach().requires_grad_()


def apart(*lengths: int) -> tuple[Tensor, Tensor]:
    return packed(*lengths, trains=True), packed(*lengths, trains=True)


def test_several_that_share_their_offsets():
    assert captures(compare(lambda x, y: x * y + x, [lambda n=n: shared(*n) for n in BATCHES])) == 1


def test_whether_offsets_are_shared_is_guarded():
    def program(x, y):
        return x * 2 + y.values().sum() if x.size(1) == y.size(1) else x * 3

    makes = [lambda make=make, n=n: make(*n) for n in BATCHES[:2] for make in (apart, shared)]
    assert captures(compare(program, makes)) == 2


def test_offsets_that_do_not_fit_raise_as_in_eager():
    def program(x, y):
        return x + y

    run = stagefold.compile(program)
    assert run(*shared(3, 2, 5)).is_nested
    for call in (run, program):
        with pytest.raises(RuntimeError, match="cannot call binary pointwise function"):
            call(*apart(3, 2, 5))


MADE = {
    "of a list": (
        lambda a, b: torch.nested.nested_tensor([a, b], layout=torch.jagged) * 2,
        lambda: (torch.ones(3, 8), torch.ones(2, 8)),
    ),
    "of a list with gradients": (
        lambda a, b: torch.nested.as_nested_tensor([a, b], layout=torch.jagged) * 2,
        lambda: (torch.ones(3, 8, requires_grad=True), torch.ones(2, 8, requires_grad=True)),
    ),
    "of offsets": (
        lambda values, offsets: torch.nested.nested_tensor_from_jagged(values * 2, offsets).sin(),
        lambda: (torch.ones(10, 8, requires_grad=True), offsets_of(3, 2, 5)),
    ),
    "of lengths": (
        lambda values, lengths: torch.nested.nested_tensor_from_jagged(values, lengths=lengths).sin().values(),
        lambda: (torch.ones(10, 8), torch.tensor([3, 2, 5])),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_made_inside(name):
    program, make = MADE[name]
    assert captures(compare(program, [make, make])) == 1


def narrowed(*lengths: int) -> Tensor:
    starts = torch.arange(len(lengths))
    values = torch.arange(len(lengths) * 72.0).view(-1, 9, 8)
    return torch.nested.narrow(values, 1, starts, torch.tensor(lengths), layout=torch.jagged)


def ragged_second(*lengths: int) -> Tensor:
    return jagged(*lengths).unflatten(-1, [2, 4]).transpose(1, 2).detach().requires_grad_()


ODD = {
    "with holes": (lambda x: x.sin() * 2, [lambda: (narrowed(3, 2, 4),), lambda: (narrowed(2, 5, 1),)]),
    "ragged in the third dimension": (
        lambda x: ((x * 2).transpose(1, 2), x.sin()),
        [lambda n=n: (ragged_second(*n),) for n in BATCHES],
    ),
    "of numbers": (
        lambda x: x * 2 + 1,
        [lambda n=n: (torch.nested.nested_tensor([torch.ones(m) for m in n], layout=torch.jagged),) for n in BATCHES],
    ),
    "of integers": (
        lambda x: F.embedding(x, torch.ones(9, 4)),
        [lambda: (torch.nested.nested_tensor([torch.arange(n) for n in (3, 7)], layout=torch.jagged),)],
    ),
    "empty parts": (lambda x: x.sin() * 2, [lambda n=n: (jagged(*n, trains=True),) for n in ((0, 4, 3), (0, 0, 0))]),
    "one part": (lambda x: x.sin() * 2, [lambda n=n: (jagged(n, trains=True),) for n in (4, 1, 0)]),
    "other columns": (lambda x: x * 2, [lambda c=c: (jagged(3, 2, columns=c, trains=True),) for c in (8, 3, 1)]),
    "computed": (lambda x: x.sin(), [lambda n=n: (jagged(*n, trains=True) * 2,) for n in BATCHES]),
    "half precision": (lambda x: x.to(torch.bfloat16).neg(), [lambda: (jagged(3, 2, trains=True),)]),
    "written": (lambda x: (x.mul_(2), x.values().add_(1)), [lambda: (jagged(3, 2),)]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_inputs(name):
    compare(*ODD[name])


@pytest.mark.parametrize("dynamic", [True, False])
def test_whether_sizes_are_open(dynamic):
    run = stagefold.compile(lambda x: F.linear(x.sin(), WEIGHT), fullgraph=True, dynamic=dynamic)
    for lengths in BATCHES:
        x = jagged(*lengths)
        torch.testing.assert_close(run(x).values(), F.linear(x.values().sin(), WEIGHT))


def attend(x: Tensor) -> Tensor:
    heads = (x * 2).unflatten(-1, [2, 4]).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2) + 1


BREAKS = {
    "attention on a CPU, part by part": (attend, "BC004: scaled_dot_product_attention"),
    "its parts": (lambda x: [part * 2 for part in x.unbind()], "BC004"),
    "text of a ragged size": (lambda x: (x * 2, len(str(x.shape)) > 0), "BC002"),
    "a ragged size in a text": (lambda x: (x * 2, len(f"{x.shape[1]}") > 0), "BC002"),
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", BREAKS)
def test_what_ends_a_graph(name, trains):
    program, code = BREAKS[name]
    with pytest.raises(stagefold.StageError, match=f"^{code}"):
        stagefold.compile(program, fullgraph=True)(jagged(3, 2, 5, trains=trains))
    makes = [lambda n=n: (jagged(*n, trains=trains),) for n in BATCHES]
    assert any(isinstance(event, Broke) for event in compare(program, makes, fullgraph=False))


def test_behind_a_graph_break():
    def program(x):
        y = x.sin()
        stagefold.graph_break()
        return y * x

    compare(program, [lambda n=n: (jagged(*n, trains=True),) for n in BATCHES], fullgraph=False)


def test_a_gradient_that_eager_lacks():
    """The backward of a sum over one dimension."""
    x = jagged(3, 2, 5, trains=True)
    run = stagefold.compile(lambda x: x.sum(1) * 2)
    torch.testing.assert_close(run(x), x.sum(1) * 2)
    with pytest.raises(NotImplementedError, match="_nested_sum_backward"):
        run(x).sum().backward()


def test_gradients_of_gradients():
    found = []
    for call in (stagefold.compile(PROGRAMS["linear"], fullgraph=True), PROGRAMS["linear"]):
        x = jagged(3, 2, 5, trains=True)
        (first,) = torch.autograd.grad(call(x.sin()).values().square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.values().square().sum(), x)
        assert first.offsets() is x.offsets()
        found.append([first.values(), second.values()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trains", [False, True])
def test_nothing_keeps_the_inputs_alive(trains):
    run = stagefold.compile(PROGRAMS["linear"], fullgraph=True)
    for lengths in BATCHES[:2]:
        x = jagged(*lengths, trains=trains)
        held = [weakref.ref(tensor) for tensor in (x, x._values, x._offsets)]
        run(x)
        del x
        gc.collect()
        assert not any(reference() is not None for reference in held)
