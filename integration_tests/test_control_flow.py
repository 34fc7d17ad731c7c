"""`torch.cond`, `while_loop`, `scan`, `associative_scan` and `map` in one graph, against Python's own control flow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.hop_db import hop_db

import stagefold
from integration_tests.zoo.devices import ON_GPU
from stagefold import backend
from stagefold.subgraphs import select
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.verify import verify

pytestmark = pytest.mark.filterwarnings("error::stagefold.errors.RunsPlain")
OPS = sys.modules["torch._higher_order_ops"]
while_loop, scan, map_rows = OPS.while_loop, OPS.scan, OPS.map  # type: ignore[attr-defined]


@cache
def scan_stacks_along_dim() -> bool:
    """Whether torch's own scan gives results along `dim`: torch 2.11 leaves them along dimension 0."""
    _, rows = scan(lambda carry, row: (carry + row, row.clone()), torch.zeros(2), torch.zeros(2, 3), dim=1)
    return rows.shape == (2, 3)


class Plain:
    """The ops by Python's statements: for the tests' programs, whose trees are tuples of tensors."""

    @staticmethod
    def cond(predicate: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        return true_fn(*operands) if predicate else false_fn(*operands)

    @staticmethod
    def while_loop(cond_fn: Any, body_fn: Any, carried: Any) -> Any:
        while cond_fn(*carried):
            carried = body_fn(*carried)
        return carried

    @staticmethod
    def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
        rows, carry = list(xs.unbind(dim)), init
        found = []
        for row in reversed(rows) if reverse else rows:
            carry, y = combine_fn(carry, row)
            found.append(y)
        along = dim if dim < y.dim() + 1 and scan_stacks_along_dim() else 0
        return carry, torch.stack(found[::-1] if reverse else found, along)

    @staticmethod
    def map(f: Any, xs: Any, *args: Any) -> Any:
        return torch.stack([f(row, *args) for row in xs.unbind()])


class Torch:
    """The ops."""

    cond, while_loop, scan, map = (staticmethod(op) for op in (torch.cond, while_loop, scan, map_rows))


SCALE = nn.Parameter(torch.linspace(0.5, 1.5, 4))
NETWORK = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def branches(ops: Any, x: Tensor) -> Any:
    return ops.cond(x.sum() > 0, lambda v: (v * SCALE).sin() + 1, lambda v: v.cos() * 2, (x,)) * 3


def branch_without_operands(ops: Any, x: Tensor) -> Any:
    """Closures only; one branch needs no gradient at all, the other none of `SCALE`."""
    y = x.exp()
    return ops.cond(x.mean() > 0, lambda: y * SCALE, lambda: torch.zeros(3, 4)) + y


def branch_of_modules(ops: Any, x: Tensor) -> Any:
    return ops.cond(x.sum() > 0, NETWORK, torch.relu, (x,)).square()


def branches_that_give_operands(ops: Any, x: Tensor) -> Any:
    same, pair = ops.cond(x.sum() > 0, lambda v: (v, (v.t(), v)), lambda v: (v + 1, (v.t() * 2, v)), (x,))
    return same * 2, pair[0].t() + pair[1]


def branches_of_other_layouts(ops: Any, x: Tensor) -> Any:
    return ops.cond(x.sum() > 0, lambda v: v.sin().t(), lambda v: v.t().contiguous().cos(), (x,)) @ x


def nested(ops: Any, x: Tensor) -> Any:
    def outer(v: Tensor) -> Tensor:
        w = v * 2
        inner = ops.cond(w.amax() > 2, lambda u: u.sin() * w, lambda u: u.cos() - w, (v,))
        return inner * SCALE + ops.map(lambda row: row.exp() + SCALE, v)

    return ops.cond(x.sum() > 0, outer, lambda v: v.tanh() * SCALE, (x,)) + 1


def loop(ops: Any, x: Tensor) -> Any:
    def step(count: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return count + 1, v * SCALE + v.sin()

    return ops.while_loop(
        lambda count, v: count < x.abs().sum().int() % 5, step, (torch.zeros((), dtype=torch.int64), x)
    )


def loop_that_changes_layout(ops: Any, x: Tensor) -> Any:
    y = x[:3, :3]
    return ops.while_loop(
        lambda n, v: n < 3, lambda n, v: (n + 1, (v + 1).t().contiguous().sin()), (torch.tensor(0), y.t())
    )


def loop_of_branches(ops: Any, x: Tensor) -> Any:
    def step(count: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return count + 1, ops.cond(v.sum() > 1, lambda u: u * 0.5, lambda u: u * SCALE + 1, (v,))

    return ops.while_loop(lambda count, v: count < 4, step, (torch.tensor(0), x))


def running(ops: Any, x: Tensor) -> Any:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        carry = torch.tanh(carry * SCALE + row)
        return carry, carry * 2 + row

    return ops.scan(step, torch.zeros(4), x)


def running_backwards(ops: Any, x: Tensor) -> Any:
    y = x.repeat(20, 1) * SCALE

    def step(carry: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        return (carry + column).sin(), carry * column

    return ops.scan(step, y.mean(1), y.t().repeat(10, 1), dim=0, reverse=True), ops.scan(step, y.mean(1), y, dim=1)


def long_scan(ops: Any, x: Tensor) -> Any:
    """Too long to be unrolled: a program for each step."""
    y = x.repeat(30, 1)

    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        carry = (carry * SCALE).cos() + row
        return carry, (carry - row).tanh()

    return ops.scan(step, torch.zeros(4), y * 2)


def rows(ops: Any, x: Tensor) -> Any:
    weight = SCALE.outer(SCALE)
    return ops.map(lambda row, bias: (row @ weight).relu() + bias, x, x[0]) * 2


PROGRAMS = [
    branches, branch_without_operands, branch_of_modules, branches_that_give_operands, branches_of_other_layouts,
    nested, loop, loop_that_changes_layout, loop_of_branches, running, running_backwards, long_scan, rows,
]  # fmt: skip


def leaves(tree: Any) -> list[Tensor]:
    return [tree] if isinstance(tree, Tensor) else [leaf for item in tree for leaf in leaves(item)]


def outcome(program: Callable[..., Any], x: Tensor, *, training: bool) -> Any:
    """Results, and gradients of everything by a sum of them; what has no gradient has one of zeros."""
    x = x.clone().requires_grad_(training)
    weights = [SCALE, *NETWORK.parameters()]
    with torch.set_grad_enabled(training):
        found = leaves(program(x))
    if not training:
        return found
    sources = [x, *weights]
    total = sum((each.float() * each.float().cos()).sum() for each in found)
    gradients = torch.autograd.grad(total, sources, allow_unused=True)
    return found, [torch.zeros_like(s) if g is None else g for s, g in zip(sources, gradients, strict=True)]


def inputs() -> list[Tensor]:
    """Each predicate true and false."""
    torch.manual_seed(5)
    x = torch.randn(3, 4)
    return [x.abs(), -x.abs(), x.abs() * 2]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_same_as_python(program: Callable[..., Any], training: bool) -> None:
    compiled = stagefold.compile(lambda x: program(Torch, x), fullgraph=True)
    for x in inputs():
        expected = outcome(lambda x: program(Plain, x), x, training=training)
        torch.testing.assert_close(outcome(compiled, x, training=training), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", [branches, nested, loop, long_scan, rows], ids=lambda each: each.__name__)
def test_sizes_that_change(program: Callable[..., Any]) -> None:
    compiled = stagefold.compile(lambda x: program(Torch, x), fullgraph=True)
    for count in (3, 5, 8, 2, 1):
        x = torch.linspace(-1, 1, count * 4).view(count, 4) + (0.5 if count % 2 else -0.5)
        expected = outcome(lambda x: program(Plain, x), x, training=True)
        torch.testing.assert_close(outcome(compiled, x, training=True), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_meaning_of_the_document(program: Callable[..., Any]) -> None:
    x = inputs()[0]
    (capture,) = stagefold.explain(lambda x: program(Torch, x), x).graphs
    parameters = {f"_{name}".replace(".", "_"): value for name, value in NETWORK.named_parameters()}
    values = [
        x if one.role == "tensor" else parameters.get(f"_{one.value.name.removeprefix('NETWORK_')}", SCALE)
        for one in capture.inputs
    ]
    found = stagefold.meaning(decode(encode(capture)))(*values)
    torch.testing.assert_close(list(found), leaves(program(Plain, x)), rtol=1e-4, atol=1e-5)


def drawing(ops: Any, x: Tensor) -> Any:
    """Only the branch that runs draws."""
    drop = nn.functional.dropout
    return ops.cond(x.sum() > 0, lambda v: drop(v, 0.5, True), lambda v: torch.rand_like(v) + v, (x,)) + torch.rand(4)


def under_autocast(ops: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return ops.cond(x.sum() > 0, lambda v: v @ v.t(), lambda v: v @ (2 * v).t(), (x,)).float()


def without_gradients(ops: Any, x: Tensor) -> Any:
    with torch.no_grad():
        a = ops.cond(x.sum() > 0, lambda v: v * SCALE, lambda v: v.sin() * 2, (x,))
    return a + ops.cond(x.sum() > 0, lambda v: (v * SCALE).detach() * v, lambda v: v.sin() * SCALE, (x,))


def numbers(ops: Any, x: Tensor) -> Any:
    """Integers, bools and complex numbers, and no elements."""
    whole, empty = (x * 10).long(), x[:, :0]
    first = ops.cond(x.sum() > 0, lambda v: (v * 2, v > 1), lambda v: (v + 1, v < 0), (whole,))
    second = ops.cond(x.sum() > 0, lambda v: torch.complex(v, v) * 2, lambda v: torch.complex(v, -v).exp(), (x,))
    return first[0] - 1, ~first[1], torch.view_as_real(second * second), ops.map(lambda row: row.sin() + 1, empty)


@pytest.mark.parametrize("program", [drawing, under_autocast, without_gradients, numbers], ids=lambda p: p.__name__)
def test_modes_and_kinds(program: Callable[..., Any]) -> None:
    compiled = stagefold.compile(lambda x: program(Torch, x), fullgraph=True)
    for x in inputs():
        found = []
        for call in (compiled, lambda x: program(Plain, x)):
            torch.manual_seed(3)
            found.append((outcome(call, x, training=True), torch.rand(1)))
        torch.testing.assert_close(*found)


class Squared(torch.autograd.Function):
    """With a gradient that is not its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 5 * x


def test_functions_of_the_program_inside() -> None:
    def program(ops: Any, x: Tensor) -> Tensor:
        return ops.cond(x.sum() > 0, lambda v: Squared.apply(v * SCALE), lambda v: v + Squared.apply(SCALE), (x,)) * 2

    compiled = stagefold.compile(lambda x: program(Torch, x), fullgraph=True)
    for x in inputs():
        expected = outcome(lambda x: program(Plain, x), x, training=True)
        torch.testing.assert_close(outcome(compiled, x, training=True), expected)


def test_gradient_of_a_gradient() -> None:
    compiled = stagefold.compile(lambda x: branches(Torch, x), fullgraph=True)
    for x in inputs():
        found = []
        for call in (compiled, lambda x: branches(Plain, x)):
            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(call(leaf).sum(), leaf, create_graph=True)
            found.append(torch.autograd.grad(gradient.square().sum(), leaf)[0])
        torch.testing.assert_close(*found)


def test_associative_scan() -> None:
    op = sys.modules["torch._higher_order_ops.associative_scan"].associative_scan  # type: ignore[attr-defined]
    compiled = stagefold.compile(lambda x: op(lambda a, b: a * b, x, 0, combine_mode="generic") + 1, fullgraph=True)
    for x in inputs():
        expected = outcome(lambda x: x.cumprod(0) + 1, x, training=True)
        torch.testing.assert_close(outcome(compiled, x, training=True), expected)


def test_zeros_as_torch_gives_them() -> None:
    """A branch that does not use a parameter gives it a gradient of zeros, and results that require grad."""
    compiled = stagefold.compile(lambda x: branch_without_operands(Torch, x), fullgraph=True)
    for call in (compiled, lambda x: branch_without_operands(Torch, x)):
        SCALE.grad = None
        result = call(-torch.ones(3, 4))
        assert result.requires_grad
        result.sum().backward()
        assert SCALE.grad is not None
        assert SCALE.grad.tolist() == [0.0] * 4
    SCALE.grad = None


DATABASE = [op for op in hop_db if op.name in ("cond", "map", "scan", "while_loop")]


@pytest.mark.parametrize("op", DATABASE, ids=lambda op: f"{op.name}_{op.variant_test_name}")
def test_torch_s_own_samples(op: Any) -> None:
    """Values as of torch's op, which compiles it by Dynamo; and gradients, those of while_loop too."""
    compiled = stagefold.compile(op.op, fullgraph=True)
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=True):
        args = [sample.input, *sample.args]
        args = [arg.requires_grad_() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args]
        found = [leaves(call(*args, **sample.kwargs)) for call in (compiled, op.op)]
        torch.testing.assert_close(*found)
        sources = [x for x in leaves(args) if x.requires_grad]
        totals = [sum(x.square().sum() for x in results if x.requires_grad) for results in found]
        torch.testing.assert_close(*[torch.autograd.grad(total, sources) for total in totals])


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [branches, nested, loop, running, rows], ids=lambda each: each.__name__)
def test_back_ends_of_torch_compile_get_torch_s_operators(program: Callable[..., Any], training: bool) -> None:
    compiled = stagefold.compile(lambda x: program(Torch, x), fullgraph=True, backend="aot_eager")
    for x in inputs():
        expected = outcome(lambda x: program(Plain, x), x, training=training)
        if not is_close(outcome(compiled, x, training=training), expected):
            assert not is_close(outcome(lambda x: program(Torch, x), x, training=training), expected)
            pytest.skip("this torch's own operators give other gradients (scan, torch 2.11)")


def is_close(found: Any, expected: Any) -> bool:
    try:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    except AssertionError:
        return False
    return True


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Numbers are waited for on the CPU as on a GPU. For each compiled program whether it has control flow left."""
    monkeypatch.setattr(select, "DEVICE", "cpu")
    seen: list[bool] = []
    runs_in_subgraphs = backend.runs_in_subgraphs

    def noted(capture: Capture) -> bool:
        verify(capture)
        seen.append(runs_in_subgraphs(capture))
        return seen[-1]

    monkeypatch.setattr(backend, "runs_in_subgraphs", noted)
    return seen


WITHOUT_WAITS = [branches, branch_without_operands]
WITH_PARTS = [branch_of_modules, branches_that_give_operands, loop_that_changes_layout]
"""Of products, or of results that are not in row-major order."""


@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_selected_by_data(program: Callable[..., Any], dynamic: bool | None, selected: list[bool]) -> None:
    compiled = stagefold.compile(lambda x: program(Torch, x), fullgraph=True, dynamic=dynamic)
    for x in inputs():
        expected = outcome(lambda x: program(Plain, x), x, training=False)
        torch.testing.assert_close(outcome(compiled, x, training=False), expected, rtol=1e-4, atol=1e-5)
    if program in WITHOUT_WAITS:
        assert selected == [False]
    if program in WITH_PARTS:
        assert selected[0]


@pytest.mark.parametrize("steps", range(0, 4 * select.STEPS, 3))
def test_steps_that_are_taken_without_need_change_nothing(steps: int, selected: list[bool]) -> None:
    def program(ops: Any, x: Tensor, last: Tensor) -> Any:
        def step(n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return n + 1, ops.cond(v.sum() > 1, lambda u: u / (last - n), lambda u: u + 1, (v,))

        return ops.while_loop(lambda n, v: n < last, step, (torch.tensor(0), x))

    with torch.no_grad():
        x, last = torch.ones(3), torch.tensor(steps)
        found = stagefold.compile(lambda x, last: program(Torch, x, last), fullgraph=True)(x, last)
        torch.testing.assert_close(found, program(Plain, x, last))
    assert selected[0]


def test_random_numbers_and_gradients_are_not_selected(selected: list[bool]) -> None:
    """What is not taken draws nothing, and its infinite gradient is no nan."""
    noisy = stagefold.compile(lambda x: torch.cond(x.sum() > 0, torch.rand_like, torch.sin, (x,)), fullgraph=True)
    root = stagefold.compile(lambda x: torch.cond(x.sum() > 0, torch.sqrt, torch.sin, (x,)), fullgraph=True)
    torch.manual_seed(0)
    noisy(-torch.ones(3))
    after = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(3))
    x = torch.zeros(3, requires_grad=True)
    root(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 3
    assert [one for one in selected if one] == [True] * 2


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_branch_on_a_gpu_does_not_wait(device: str, mode: str) -> None:
    def program(ops: Any, x: Tensor) -> Any:
        y = ops.cond(x.sum() > 0, lambda v: (v * 2).sin() + 1, lambda v: v.cos() * 2, (x,))
        return ops.cond(y.mean() > 1, lambda v: v.softmax(-1), lambda v: v - v.mean(), (y,)) * 3

    compiled = stagefold.compile(lambda x: program(Torch, x), fullgraph=True, mode=mode)
    with torch.no_grad():
        for x in inputs() * 3:
            given = x.to(device)
            expected = program(Plain, given)
            compiled(given)
            torch.cuda.set_sync_debug_mode("error")
            try:
                found = compiled(given)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_writes_without_gradients() -> None:
    """Of an operand, a closure, and a tensor of the program's own, read behind them."""

    def program(ops: Any, x: Tensor, buffer: Tensor) -> Any:
        with torch.no_grad():
            own = x * 2
            y = ops.cond(x.sum() > 0, lambda v: v.add_(buffer.mul_(2)).sin(), lambda v: own.sub_(1) * v, (x,))
            n, z = ops.while_loop(lambda n, v: n < 3, lambda n, v: (n + 1, v * own.add_(1)), (torch.tensor(0), y))
        return y.cos() + x, n, z + buffer, own * 2

    compiled = stagefold.compile(lambda x, buffer: program(Torch, x, buffer), fullgraph=True)
    for x in inputs():
        found = []
        for call in (compiled, lambda x, buffer: program(Plain, x, buffer)):
            given, buffer = x.clone(), torch.ones(4)
            found.append((call(given, buffer), given, buffer))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("program", [branches, nested, loop, long_scan], ids=lambda each: each.__name__)
def test_behind_torch_compile(program: Callable[..., Any], dynamic: bool) -> None:
    """torch's operators in its graphs are control flow of our capture."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: program(Torch, x), backend="stagefold", fullgraph=True, dynamic=dynamic)
    for x in inputs():
        expected = outcome(lambda x: program(Plain, x), x, training=True)
        torch.testing.assert_close(outcome(compiled, x, training=True), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", [branches, nested, loop, running_backwards], ids=lambda each: each.__name__)
def test_exported_programs(program: Callable[..., Any]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = SCALE

        def forward(self, x: Tensor) -> Any:
            return program(Torch, x)

    capture, held = stagefold.from_fx(torch.export.export(Model(), (inputs()[0],)).module())
    verify(capture)
    compiled = stagefold.compile_capture(decode(encode(capture)), held)
    for x in inputs():
        torch.testing.assert_close(leaves(compiled(x)), leaves(program(Plain, x)), rtol=1e-4, atol=1e-5)
