"""Odd inputs and odd programs: values, strides, mutations, gradients and errors as in eager."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import stagefold

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3}


def same(expected: Any, found: Any) -> None:
    """Equal in structure, class, dtype, shape, strides, requires_grad and value."""
    assert type(expected) is type(found)
    if isinstance(expected, Tensor):
        described = [(t.dtype, t.shape, t.requires_grad) for t in (expected, found)]
        assert described[0] == described[1]
        if expected.numel():
            strides = zip(expected.shape, expected.stride(), found.stride(), strict=True)
            assert all(size == 1 or first == second for size, first, second in strides)
        tolerance = TOLERANCE.get(expected.dtype, 1e-5)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(expected, dict):
        assert list(expected) == list(found)
        for key, value in expected.items():
            same(value, found[key])
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(found)
        for first, second in zip(expected, found, strict=True):
            same(first, second)
    else:
        assert expected == found


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def check(program: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """The program eagerly and compiled on equal inputs: results, what it wrote, gradients, or the error."""
    ours, theirs = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
    compiled = stagefold.compile(program)
    torch.manual_seed(1)
    try:
        expected = program(*theirs[0], **theirs[1])
    except Exception as error:
        with pytest.raises(type(error)):
            compiled(*ours[0], **ours[1])
        return
    torch.manual_seed(1)
    found = compiled(*ours[0], **ours[1])
    same(expected, found)
    same(theirs, ours)
    for result in (expected, found):
        roots = [t for t in tensors(result) if t.requires_grad]
        if roots:
            sum(t.abs().float().sum() for t in roots).backward()
    for theirs_leaf, ours_leaf in zip(tensors(theirs), tensors(ours), strict=True):
        if theirs_leaf.is_leaf:
            same(theirs_leaf.grad, ours_leaf.grad)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def arithmetic(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2 + 1).relu() - x, x.sum(), (x > 0) & (x < 1)


FLOATS = {
    "empty": torch.randn(0, 3),
    "zero-dim": torch.tensor(2.0),
    "one": torch.randn(1),
    "transposed": torch.randn(4, 6).t(),
    "strided": torch.randn(4, 6)[:, ::2],
    "offset": torch.randn(40)[3:33].view(5, 6),
    "expanded": torch.randn(4, 1).expand(4, 5),
    "channels-last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "permuted": torch.randn(2, 3, 1, 4, 2).permute(4, 0, 3, 1, 2),
    "bfloat16": torch.randn(7).bfloat16(),
    "float16": torch.randn(7).half(),
    "float64": torch.randn(7, dtype=torch.float64),
    "not finite": torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e38, 1e-45]),
}


@pytest.mark.parametrize("name", FLOATS)
def test_float_layouts(name: str) -> None:
    check(arithmetic, FLOATS[name])
    check(arithmetic, FLOATS[name].clone().requires_grad_())


INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_divide_and_promote(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.min + 1, 0, 1, 7, limits.max], dtype=dtype)
    check(lambda x: (x + 1, x * 3, x - 5, x // 3, x % 3, x / 2, x * 1.5, x.sum(), ~x, x & 3, x.float()), x)


def test_booleans() -> None:
    x, y = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    check(lambda x, y: (x & y, x | y, x ^ y, ~x, x + y, x.sum(), x.any(), x.all(), x.float() * 2), x, y)
    check(lambda x, y: torch.where(x, y, -y), x, leaf(3))


def test_complex() -> None:
    check(lambda x: (x * x.conj(), x.abs(), x.real + x.imag, torch.view_as_real(x) * 2), leaf(4, dtype=torch.complex64))


def test_not_finite_values_go_through_functions() -> None:
    x = FLOATS["not finite"]
    check(lambda x: (torch.sigmoid(x), x.tanh(), x.exp(), x.log(), x.sqrt(), F.silu(x), F.softplus(x), x.erf()), x)
    check(lambda x: (x.clamp(0, 1), torch.maximum(x, x.flip(0)), x.softmax(0), x.max(), x.amin(), x.argmax()), x)
    check(lambda x: (x.isnan(), x.nan_to_num(), x.floor(), torch.where(x > 0, x, 0.0), 1 / x, x**2, x.bool()), x)


def test_ties_choose_the_same_gradient() -> None:
    x = torch.tensor([2.0, 2.0, 1.0, 0.0, -0.0], requires_grad=True)
    check(lambda x: (x.amax(0), x.relu(), x.abs(), x.clamp(0, 1), torch.maximum(x, x.detach().flip(0))), x)
    check(lambda x: (x.max(), x.argmax(), x.sort(stable=True)), torch.tensor([1, 3, 3, 1]))


def write_through_views(x: Tensor, index: Tensor) -> Tensor:
    x[0] = 5
    x[:, 1] += x[:, 2]
    x.view(-1)[::2].mul_(3)
    x.t().add_(1)
    x.index_put_((index,), x[:1].clone(), accumulate=True)
    return x.sum()


def write_own_copy(x: Tensor) -> Tensor:
    y = x * 1
    y.add_(1)
    y[0].mul_(3)
    return y


def test_mutations() -> None:
    check(write_through_views, torch.randn(3, 4), torch.tensor([0, 2, 0]))
    check(write_own_copy, leaf(3, 4))
    check(lambda x, y: x.copy_(y), torch.randn(3, 4), torch.arange(4))
    check(lambda x: x[:2].mul_(3).sum() + x, torch.randn(8)[::2])
    check(lambda x: x.add_(1), leaf(3))  # refused: a leaf that requires grad


def test_identity_and_aliases_of_results() -> None:
    x = torch.randn(4)
    first, second = stagefold.compile(lambda x: (x, x.add_(1)))(x)
    assert first is x
    assert second is x
    view = stagefold.compile(lambda x: x[1:])(x)
    view.zero_()
    assert not x[1:].any()

    def made(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        return y, y, y[0]

    y, again, row = stagefold.compile(made)(torch.ones(2, 2))
    assert y is again
    y.zero_()
    assert not row.any()


Pair = collections.namedtuple("Pair", "a b")


def test_containers_in_and_out() -> None:
    x = torch.randn(3)
    check(lambda x: {"a": x + 1, "b": [x, (x * 2, None, 3, "s")], "p": Pair(x * 3, 1), "shape": x.shape}, x)
    check(lambda d, p: d["a"] * d["b"][1] + p.a * p.b, {"a": x, "b": [x, leaf(3)]}, Pair(x, 2))
    check(lambda *a, y=2, **k: a[0] * y + sum(a[1:]) + k.get("z", 0), x, x, 1, z=leaf(3))


def test_lists_and_dicts_are_changed() -> None:
    def program(x: Tensor, items: list, names: dict) -> int:
        items.append(x * 2)
        names["n"] = x + 1
        names.pop("old")
        return len(items)

    check(program, torch.randn(3), [1], {"old": 1})


def test_errors_are_those_of_eager_and_keep_side_effects() -> None:
    def broken(x: Tensor, items: list) -> None:
        items.append(1)
        x.add_(1)
        raise KeyError("k")

    check(broken, torch.randn(3), [])
    check(lambda x, y: x + y, torch.randn(3), torch.randn(4))
    check(lambda x: x.view(7), torch.randn(3))
    check(lambda x: x.no_such_attribute, torch.randn(3))
    check(lambda x, i: x[i], torch.randn(4), torch.tensor([4]))


SCALE = torch.ones(3)


def test_globals_and_closures_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, factors = torch.randn(3), [2]

    def program(x: Tensor) -> Tensor:
        return x * weight * factors[0] + SCALE

    compiled, x = stagefold.compile(program), torch.randn(3)
    same(program(x), compiled(x))
    weight.mul_(3)
    same(program(x), compiled(x))
    factors[0] = 5
    same(program(x), compiled(x))
    monkeypatch.setitem(globals(), "SCALE", torch.zeros(3))
    same(program(x), compiled(x))
    weight = torch.randn(1)
    same(program(x), compiled(x))


def test_one_compiled_function_many_types() -> None:
    compiled = stagefold.compile(lambda x: x * 2 + 1)
    for x in (
        torch.randn(3),
        torch.arange(3),
        torch.randn(3).bfloat16(),
        torch.randn(2, 2).t(),
        leaf(2),
        torch.ones(()),
    ):
        same(x * 2 + 1, compiled(x))


def test_grad_modes_alternate() -> None:
    model = nn.Linear(3, 3)
    compiled, x = stagefold.compile(model), torch.randn(2, 3)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    model.bias.requires_grad_(False)
    compiled(x).sum().backward()
    assert model.weight.grad is not None
    assert model.bias.grad is None


class Counting(nn.Module):
    """Counts its calls in a Python attribute and a buffer, and normalises."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += x.shape[0]
        return self.drop(self.norm(x)) * self.calls


def test_module_state() -> None:
    eager = Counting()
    twin = copy.deepcopy(eager)
    compiled = stagefold.compile(twin)
    for training in (True, True, False, True):
        eager.train(training)
        compiled.train(training)
        x = torch.randn(5, 4)
        for module in (eager, compiled):
            torch.manual_seed(3)
            module.result = module(x)
        same(eager.result, twin.result)
    assert eager.calls == twin.calls
    same(dict(eager.state_dict()), dict(compiled.state_dict()))


def test_deepcopy_and_load_state_dict() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = stagefold.compile(model)
    compiled(x)
    other = copy.deepcopy(compiled)
    other.load_state_dict({key: torch.zeros_like(value) for key, value in compiled.state_dict().items()})
    assert not other(x).any()
    same(model(x), compiled(x))


def test_parameters_submodules_and_hooks_are_replaced() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    compiled = stagefold.compile(model)
    same(model(x), compiled(x))
    model[0].weight = nn.Parameter(torch.randn(4, 4))
    same(model(x), compiled(x))
    model[1] = nn.Tanh()
    same(model(x), compiled(x))
    handle = model[0].register_forward_hook(lambda module, given, result: result * 2)
    same(model(x), compiled(x))
    handle.remove()
    same(model(x), compiled(x))


class Scaler:
    def __init__(self) -> None:
        self.factor = 3

    @stagefold.compile
    def method(self, x: Tensor) -> Tensor:
        return x * self.factor

    @staticmethod
    @stagefold.compile
    def static(x: Tensor) -> Tensor:
        return x + 1

    @classmethod
    @stagefold.compile
    def of_class(cls, x: Tensor) -> Tensor:
        return x + 2


def test_decorated_methods() -> None:
    scaler, x = Scaler(), torch.ones(2)
    same(x * 3, scaler.method(x))
    scaler.factor = 4
    same(x * 4, scaler.method(x))
    same(x + 1, Scaler.static(x))
    same(x + 2, scaler.of_class(x))


def test_backward_runs_as_often_as_eager_allows() -> None:
    compiled, x = stagefold.compile(lambda x: (x.sin() * x).sum()), leaf(3)
    y = compiled(x)
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError):
        y.backward()
    given = leaf(3) * 1
    squared = stagefold.compile(lambda x: x * x)(given)
    with torch.no_grad():
        given.add_(1)
    with pytest.raises(RuntimeError):  # what the backward needs was changed
        squared.sum().backward()


@pytest.mark.filterwarnings("ignore:runs plain")
def test_data_decides() -> None:
    def branch(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    check(branch, torch.ones(3))
    check(branch, -torch.ones(3))
    check(lambda x: x[x > 0] * 2, torch.randn(8))
    check(lambda x: x.sum().item() + 1, torch.ones(3))


def test_random_numbers_follow_the_seed() -> None:
    for program in (lambda x: F.dropout(x), lambda x: torch.rand_like(x) + x, lambda x: torch.bernoulli(x.sigmoid())):
        check(program, torch.ones(50))
    compiled = stagefold.compile(lambda x: F.dropout(x))
    assert not torch.equal(compiled(torch.ones(100)), compiled(torch.ones(100)))


@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_over_nothing_is_minus_infinity(keepdim: bool) -> None:
    compiled = stagefold.compile(lambda x: torch.logsumexp(x, 1, keepdim=keepdim) + 0, fullgraph=True)
    assert torch.equal(compiled(torch.empty(3, 0)), torch.logsumexp(torch.empty(3, 0), 1, keepdim=keepdim))


def test_the_spread_of_great_numbers_does_not_overflow() -> None:
    check(lambda x: (x.std(), x.var(0, unbiased=False)), torch.tensor([1e18, -3e18, 2e18]))
    compiled = stagefold.compile(lambda x: x.std(), fullgraph=True)
    torch.testing.assert_close(compiled(torch.tensor([1e20, -1e20, 3e19])), torch.tensor([1e20, -1e20, 3e19]).std())


def test_variance_of_wide_float64_rows_compiles_and_agrees() -> None:
    check(lambda x: x.var(-1), torch.randn(64, 4096, dtype=torch.float64))


def test_tensors_without_data() -> None:
    """For the meta device no kernels are written: such a frame runs plain."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.device]:
        made = torch.ones(2, 3, device="meta")
        return x * 2, made.t() @ x.to("meta"), made.device

    with pytest.warns(UserWarning, match="CG014"):
        doubled, product, device = stagefold.compile(program)(torch.ones(2, 4))
    assert torch.equal(doubled, torch.full((2, 4), 2.0))
    assert device == torch.device("meta")
    assert product.shape == (3, 4)
    assert product.device == device
    with pytest.warns(UserWarning, match="CG014"):
        assert stagefold.compile(lambda x: x + 1)(product).device == device
