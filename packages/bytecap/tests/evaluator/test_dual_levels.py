"""torch.autograd.forward_ad in captured code: what runs inside of a dual level is a function of the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.utils._pytree import tree_leaves, tree_map

from bytecap import executor, optimize
from bytecap.errors import CannotCapture
from stagewire.verify import verify

LAYER = torch.nn.Linear(3, 2)


def one_call(x: Tensor) -> Any:
    with dual_level():
        return unpack_dual(make_dual(x, torch.ones_like(x)).sin())


def with_numbers(x: Tensor) -> Any:
    with dual_level():
        dual = make_dual(x, x + 1)
        found = [dual * 2, 2 / dual, dual - 2, 2.5 * dual**3, torch.where(dual > 0, dual, 0.5), dual * torch.tensor(2)]
        return [unpack_dual(each).tangent for each in found]


def several_tangents(x: Tensor) -> Any:
    outside = x * 2
    with dual_level():
        left, right = make_dual(x, outside), make_dual(outside, x.cos())
        product = left.t() @ right
        plain = outside + 1
        found = [unpack_dual(each) for each in (product, (left > 0) * 1, plain, left.detach())]
    return [tuple(each) for each in found], unpack_dual(product), left + right


def module(x: Tensor) -> Any:
    with dual_level():
        found = torch.func.functional_call(LAYER, {"weight": make_dual(LAYER.weight, LAYER.weight * 3)}, (x,))
        value, tangent = unpack_dual(torch.nn.functional.gelu(found))
    return value, tangent


def writes(x: Tensor) -> Any:
    with dual_level():
        made = torch.zeros_like(x)
        made.add_(make_dual(x, x * x))
        made[0] = 5
        view = made[1:]
        view.mul_(2)
        return unpack_dual(made), unpack_dual(view).tangent


def by_functions(x: Tensor) -> Any:
    level = forward_ad.enter_dual_level()
    dual = make_dual(x, x, level=level)
    found = unpack_dual(dual.exp(), level=level)
    forward_ad.exit_dual_level(level=level)
    return found, unpack_dual(dual), level


def twice(x: Tensor) -> Any:
    with dual_level():
        first = unpack_dual(make_dual(x, x).tanh()).tangent
    with dual_level():
        second = unpack_dual(make_dual(first, x).square()).tangent
    with dual_level():
        pass
    return first + second


def leaves_by_an_exception(x: Tensor) -> Any:
    try:
        with dual_level():
            found = unpack_dual(make_dual(x, x).sqrt()).tangent
            raise KeyError
    except KeyError:
        return found * 2


def without_gradients(x: Tensor) -> Any:
    with dual_level(), torch.no_grad():
        first = unpack_dual(make_dual(x, x).exp()).tangent
    return first, x * first


PROGRAMS = [
    one_call,
    with_numbers,
    several_tangents,
    module,
    writes,
    by_functions,
    twice,
    leaves_by_an_exception,
    without_gradients,
]


def outcome(call: Any, x: Tensor, trains: bool) -> Any:
    LAYER.zero_grad()
    x = x.clone().requires_grad_(trains)
    result = call(x)
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if results:
        sum(leaf.abs().square().sum() for leaf in results).backward()  # type: ignore[union-attr]
    plain = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, result)
    return plain, x.grad, [each.grad for each in LAYER.parameters()], [leaf.grad_fn is None for leaf in results]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_gives_what_eager_gives(program: Any, trains: bool) -> None:
    captures: list[Any] = []
    compiled = optimize(program, lambda capture, inputs: captures.append(capture) or executor(capture), fullgraph=True)
    for size in (3, 5):
        x = torch.linspace(0.5, 2, size * 3).view(size, 3)
        for _ in range(2):
            found, expected = outcome(compiled, x, trains), outcome(program, x, trains)
            torch.testing.assert_close(found, expected)
            assert type(found[0]) is type(expected[0])
    for capture in captures:
        verify(capture)
    assert forward_ad._current_level == -1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (4, 2)])
def test_dtypes_and_shapes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 0.5, dtype=dtype)
    x = x.mT if x.dim() > 1 else x
    found = optimize(one_call, lambda capture, inputs: executor(capture), fullgraph=True)(x)
    torch.testing.assert_close(found, one_call(x), rtol=0, atol=0)


def of_integers(x: Tensor) -> Any:
    with dual_level():
        return unpack_dual(make_dual(x.long(), x))


def of_other_sizes(x: Tensor) -> Any:
    with dual_level():
        return unpack_dual(make_dual(x, x[:1]))


def not_differentiable(x: Tensor) -> Any:
    with dual_level():
        return unpack_dual(torch.floor_divide(make_dual(x, x), 2))


def outside_of_a_level(x: Tensor) -> Any:
    return make_dual(x, x)


def in_a_level(x: Tensor) -> Any:
    with dual_level(), dual_level():
        return x + 1


def inside_a_function(x: Tensor) -> Any:
    def function(y: Tensor) -> Tensor:
        with dual_level():
            return unpack_dual(make_dual(y, y).sin()).tangent

    return torch.func.vmap(function)(x)


@pytest.mark.parametrize(
    "program",
    [inside_a_function, of_integers, of_other_sizes, not_differentiable, outside_of_a_level, in_a_level],
    ids=lambda program: program.__name__,
)
def test_eager_raises_its_own_error(program: Any) -> None:
    x = torch.ones(3, 2)
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)) as expected:
        program(x)
    compiled = optimize(program, lambda capture, inputs: executor(capture))
    for _ in range(2):
        with pytest.raises(expected.type) as found:
            compiled(x)
        assert str(found.value) == str(expected.value)
        assert forward_ad._current_level == -1


def breaks_inside(x: Tensor) -> Any:
    y = x.cos()
    with dual_level():
        dual = make_dual(x, y)
        factor = 2 if bool(x.sum() > 0) else 3
        found = unpack_dual(dual * factor).tangent
    return found.sin()


def writes_an_input(x: Tensor) -> Any:
    with dual_level():
        x.mul_(make_dual(x.clone(), x + 1))
        return unpack_dual(x).tangent * 2


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 7


def own_function(x: Tensor) -> Any:
    with dual_level():
        return unpack_dual(Own.apply(make_dual(x, x))).tangent + 1


@pytest.mark.parametrize(
    "program",
    [breaks_inside, writes_an_input, own_function],
    ids=lambda program: program.__name__,
)
def test_what_is_refused_runs_plain(program: Any) -> None:
    with pytest.raises(CannotCapture):
        optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)(torch.ones(3, 2))
    assert forward_ad._current_level == -1
    compiled = optimize(program, lambda capture, inputs: executor(capture))
    for sign in (1, -1):
        x, twin = torch.full((3, 2), 0.5 * sign), torch.full((3, 2), 0.5 * sign)
        torch.testing.assert_close(compiled(x), program(twin))
        torch.testing.assert_close(x, twin)
        assert forward_ad._current_level == -1


def test_a_level_that_stays_open() -> None:
    def program(x: Tensor) -> Any:
        forward_ad.enter_dual_level()
        return make_dual(x, x * 2).sin()

    try:
        found = optimize(program, lambda capture, inputs: executor(capture))(torch.ones(3))
        torch.testing.assert_close(unpack_dual(found).tangent, torch.ones(3).cos() * 2)
    finally:
        forward_ad.exit_dual_level()
