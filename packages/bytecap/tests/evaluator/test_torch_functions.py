"""Programs run plain and captured: torch functions and tensor methods with a meaning of their own."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from bytecap import executor, optimize
from bytecap.testing import Programs
from bytecap.testing.comparison import differences
from bytecap.testing.operators import doubled, halves

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


def leaf() -> torch.Tensor:
    return matrix().requires_grad_()


def computed() -> torch.Tensor:
    return leaf() * 1


def place() -> torch.Tensor:
    return torch.tensor(-2)


# -- a 0-dim integer tensor as index


@PROGRAMS.add(matrix)
def a_parameter_that_is_named_like_a_keyword(x):
    return torch.empty_like(x).random_(**{"from": 3, "to": 4}) + x


@PROGRAMS.add(leaf, place)
def read_at_place(x, i):
    return x[i], x[:, i], x[..., i, None], x[i, i], x[[0, 2], i], x[x[0].argmax() - 1] * 2


@PROGRAMS.add(matrix, place)
def write_at_place(x, i):
    x[i] = 7.0
    x[:, i] += 2
    x[i].mul_(3)
    return x * 2


@PROGRAMS.add(matrix, place, refusal="BC004")
def slice_to_place(x, i):
    return x[:i]


# -- a computed tensor from outside is no leaf, and no view


@PROGRAMS.add(computed)
def write_into_computed(x):
    x[0] = 3.0
    return x.mul_(2) * 2


@PROGRAMS.add(computed)
def write_into_view_of_computed(x):
    x.view(-1)[3:].zero_()
    return x.sum(), x.is_leaf, x.requires_grad


# -- torch.utils.checkpoint


def scaled_sine(x, y, scale=2.0):
    return (x * y).sin() * scale


@PROGRAMS.add(leaf, matrix)
def checkpoint_without_reentry(x, y):
    return checkpoint(scaled_sine, x, y, scale=3.0, use_reentrant=False)


@PROGRAMS.add(leaf, matrix)
def checkpoint_with_reentry(x, y):
    return checkpoint(scaled_sine, x, y, use_reentrant=True), checkpoint(lambda y: x * y, y, use_reentrant=True)


@PROGRAMS.add(leaf, matrix)
def checkpoint_by_default(x, y):
    return checkpoint(scaled_sine, x, y)


def settings_of(x, **settings):
    return x * 3, tuple(settings)


def checkpoint_with_a_setting_of_new_releases(x):
    return checkpoint(settings_of, x, use_reentrant=False, respect_saved_tensors_hooks=False)


def checkpoint_as_decorator(x):
    return checkpoint(use_reentrant=False)(settings_of)(x)


@pytest.mark.parametrize("program", [checkpoint_with_a_setting_of_new_releases, checkpoint_as_decorator])
def test_what_checkpoint_takes_is_what_torchs_takes(program):
    """Older releases hand unknown settings to the function, and know no decorator."""
    outcomes = []
    for function in (program, optimize(program, lambda capture, inputs: executor(capture))):
        try:
            outcomes.append(function(matrix()))
        except TypeError as error:
            outcomes.append(str(error))
    assert not differences(*outcomes)


def test_a_checkpoint_of_running_statistics_changes_them_twice():
    outcomes = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = torch.nn.BatchNorm1d(4)
        states = []

        def run(x, model=model):
            return checkpoint(model, x * 2, use_reentrant=False).sin() + 1

        call = optimize(run, lambda capture, _: executor(capture)) if captured else run
        for number in range(2):
            x = torch.full((3, 4), 1.0 + number, requires_grad=True)
            call(x).sum().backward()
            states.append([value.clone() for value in (*model.buffers(), x.grad)])
        outcomes.append(states)
    assert not differences(*outcomes)


COUNTS = {"calls": 0}


def counted(x):
    COUNTS["calls"] += 1
    return x * 2


@PROGRAMS.add(leaf, refusal="BC002")
def checkpoint_of_a_counter(x):
    return checkpoint(counted, x, use_reentrant=False)


def saves_products(ctx, op, *args, **kwargs):
    is_product = op == torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


@PROGRAMS.add(leaf, matrix)
def selective_checkpoint(x, y):
    contexts = partial(create_selective_checkpoint_contexts, saves_products)
    return checkpoint(scaled_sine, x, y, use_reentrant=False, context_fn=contexts)


@PROGRAMS.add(leaf, matrix, refusal="BC002")
def checkpoint_with_contexts(x, y):
    return checkpoint(scaled_sine, x, y, use_reentrant=False, context_fn=lambda: (nullcontext(), nullcontext()))


def test_the_nodes_of_a_checkpoint_are_noted():
    captures = []

    def program(x, y):
        z = checkpoint(scaled_sine, x + 1, y, use_reentrant=False)
        return checkpoint(scaled_sine, z, y, use_reentrant=False).sum()

    def backend(capture, inputs):
        captures.append(capture)
        return executor(capture)

    optimize(program, backend, fullgraph=True)(leaf(), matrix())
    (capture,) = captures
    assert [(part.first, part.last) for part in capture.checkpoints] == [(1, 4), (4, 7)]
    assert capture.graph.nodes[1].target == "operator.mul"


# -- others


@PROGRAMS.add(matrix)
def tensors_of_tensors(x):
    a, b = x.sum(), x.mean().double()
    return torch.tensor([a, 2]), torch.tensor([[a, b], [b, 1.0]]), torch.as_tensor([a, True], dtype=torch.float16)


@PROGRAMS.add(matrix, refusal="BC004")
def integers_from_floats(x):
    return torch.tensor([x.sum()], dtype=torch.int64)


@PROGRAMS.add(leaf)
def recorded_region(x):
    with torch.profiler.record_function("region"), torch._C.DisableTorchFunctionSubclass():
        return x * 2


@PROGRAMS.add(matrix)
def deep_copy(x):
    y = copy.deepcopy(x)
    y.add_(1)
    return x, y, torch.typename(x), torch.typename(3)


@PROGRAMS.add(matrix)
def operators_that_tensors_lack(x):
    found = []
    for operation in (lambda: divmod(x, 2), lambda: divmod(2, x), lambda: x.names):
        try:
            found.append(operation())
        except (TypeError, AttributeError) as error:
            found.append(type(error).__name__)
    return found, x + 1


@PROGRAMS.add(matrix)
def rounded(x):
    try:
        return round(x)
    except TypeError as error:
        return str(error), x + 1


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        weights = {"weight": x.t() @ x, "bias": x[0]}
        return self.linear.to(torch.float32)(x) + torch.func.functional_call(self.linear, weights, (x,))


@PROGRAMS.add(Module, matrix)
def same_data_and_other_parameters(module, x):
    return module(x)


class Tagged:
    """No tensor, but torch functions take it."""

    def __init__(self, content, tag):
        self.content, self.tag = content, tag

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        assert types == (cls,)
        plain = [arg.content if isinstance(arg, cls) else arg for arg in args]
        return cls(function(*plain, **(kwargs or {})), function.__name__)


@PROGRAMS.add(lambda: Tagged(matrix(), "first"), matrix)
def torch_function(tagged, x):
    result = torch.add(torch.sin(tagged), x, alpha=2)
    return result.content, result.tag, torch.nn.functional.relu(Tagged(x, "")).content


@PROGRAMS.add(matrix)
def custom_op(x):
    first, second = halves(x, 2.0)
    return first, torch.ops.bytecap_tests.halves(second, 3.0)


@PROGRAMS.add(matrix, refusal="BC011")
def custom_op_without_fake(x):
    return doubled(x) + 1


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


class Normalized(torch.nn.Module):
    """Assigns the data of its parameter and buffer, and overwrites a tensor that it holds."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(tensor(5, 4))
        self.register_buffer("direction", tensor(4))
        self.scaled = None

    def forward(self, x):
        for _ in range(2):
            self.direction.data = torch.nn.functional.normalize(self.weight.data.sum(0) + self.direction.data, dim=0)
        self.weight.data = torch.nn.functional.normalize(self.weight.data)
        self.scaled = self.weight * (self.direction @ self.direction)
        return torch.nn.functional.linear(x, self.scaled)


def test_data_is_assigned():
    def run(module, call):
        results = []
        for _ in range(3):
            result = call(matrix())
            result.square().sum().backward()
            results.append(result.detach())
        return results, dict(module.named_parameters()), dict(module.named_buffers())

    plain, captured = Normalized(), Normalized()
    inputs = []

    def backend(capture, examples):
        inputs.append([item.value.name for item in capture.inputs])
        return executor(capture)

    found = run(captured, optimize(captured, backend, fullgraph=True))
    assert differences(run(plain, plain), found) == []
    assert all(len(names) == 3 for names in inputs), inputs  # not the tensor that is only overwritten
