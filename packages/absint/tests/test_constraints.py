"""Each constraint of a rule refuses its example, and eager refuses it with the same class; kernels are asked."""

import pytest
import torch

from absint import AbstractMode, AbstractTensor, abstract_call, contiguous, from_tensor
from absint.errors import KernelMissing, TypeRuleError
from absint.kernels import Question, ask
from absint.meta import Meta, span
from absint.rules import RULES
from absint.signatures import bind, full_name
from absint.symbolic import ShapeEnv, make_size
from absint.targets import resolve

DISTINCT = list(dict.fromkeys(constraint for rule in RULES.values() for constraint in rule.requires))


def real(value):
    """Zeros of a type, on which eager runs."""
    if isinstance(value, Meta):
        memory = torch.zeros(span(value), dtype=value.dtype)
        return memory.as_strided(value.shape, value.stride, value.storage_offset)
    return [real(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("constraint", DISTINCT, ids=lambda c: f"{c.refused.name}-{c.label}")
def test_the_example_is_refused_as_eager_refuses_it(constraint):
    name = full_name(constraint.refused.name)
    assert constraint in RULES[name].requires
    args, kwargs = constraint.refused.args, constraint.refused.kwargs
    assert not bind(constraint.holds, resolve(name))(*args, **kwargs)
    with pytest.raises(TypeRuleError) as ours:
        RULES[name].bound(resolve(name))(*args, **kwargs)
    with pytest.raises(Exception) as eager:
        resolve(name)(*map(real, args), **{key: real(value) for key, value in kwargs.items()})
    assert ours.value.eager is type(eager.value)
    assert f"({constraint.label})" in ours.value.message


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.requires])
def test_labels_of_an_overload_are_its_own(name):
    labels = [constraint.label for constraint in RULES[name].requires]
    assert len(labels) == len(set(labels))


F32, I64 = torch.float32, torch.int64
F = torch.nn.functional


def zeros(*shape, dtype=F32):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("call", "operands"),
    [
        (torch.gcd, (zeros(3), zeros(3))),
        (torch.where, (zeros(3), zeros(3), zeros(3))),
        (lambda x, i: x.gather(0, i), (zeros(3, 2), zeros(3, dtype=I64))),
        (torch.argmax, (zeros(0, 2),)),
        (torch.max, (zeros(0, 2),)),
        (lambda x: x.amax(0), (zeros(0, 2),)),
        (torch.std, (zeros(3, dtype=I64),)),
        (torch.Tensor.abs_, (zeros(3, dtype=torch.complex64),)),
        (lambda x, i, out: torch.gather(x, 0, i, out=out), (zeros(3), zeros(3, dtype=I64), zeros(3, dtype=I64))),
        (lambda x: F.gelu(x, approximate="asdf"), (zeros(3),)),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=0), (zeros(1, 4, 4),)),
        (lambda x: F.max_pool2d(x, 2, padding=2), (zeros(1, 4, 4),)),
        (lambda x: torch.rot90(x, 1, (1, 1)), (zeros(3, 3),)),
        (lambda x: F.interpolate(x, size=(0, 2)), (zeros(1, 1, 3, 3),)),
        (lambda x, i, y: x.index_put((i,), y), (zeros(3, 2), zeros(3, dtype=I64), zeros(3, 2, dtype=torch.float64))),
        (lambda x, i, y: x.index_add(0, i, y), (zeros(0), zeros(1, dtype=I64), zeros(1))),
        (lambda x, i, y: x.index_reduce(0, i, y, "amax"), (zeros(2, 0), zeros(3, dtype=I64), zeros(3, 1))),
        (lambda x, i, y: x.scatter_reduce(0, i, y, "sum"), (zeros(0, 2), zeros(1, 2, dtype=I64), zeros(1, 2))),
        (lambda x, i: x.index_fill_(0, i, 1.0), (zeros(0), zeros(1, dtype=I64))),
        (lambda x, out: torch.multinomial(x, 2, out=out), (torch.ones(3), zeros(2))),
        (lambda x: x.exponential_(-1.0), (zeros(3),)),
        (torch.ops.aten._native_batch_norm_legit.no_stats, (zeros(5, 3, 0), None, None, True, 0.1, 1e-5)),
        (torch.ops.aten.native_batch_norm, (zeros(0, 3), None, None, zeros(3), zeros(3), True, 0.1, 1e-5)),
        (torch.ops.aten._native_batch_norm_legit, (zeros(0, 3), None, None, zeros(3), zeros(3), True, 0.1, 1e-5)),
        (torch.ops.aten._batch_norm_with_update, (zeros(0, 3), None, None, zeros(3), zeros(3), 0.1, 1e-5)),
        (torch.rand_like, (zeros(3, dtype=I64),)),
        (lambda x: torch.randn(3, dtype=torch.bool) * x, (zeros(3),)),
        (lambda x: torch.randperm(3, dtype=torch.bool) * x, (zeros(3),)),
        (lambda x: torch.full((2,), 1e9, dtype=torch.uint8) * x, (zeros(2),)),
        (lambda x: torch.arange(0, float("inf")) * x, (zeros(2),)),
        (lambda x: torch.tril_indices(-1, 2) * x, (zeros(2),)),
        (torch.ops.aten.fill.Tensor, (zeros(3), zeros(1))),
        (lambda x: torch.linspace(x, 1, 3), (zeros(1),)),
        (lambda x: x.topk(2, 0), (zeros(),)),
        (torch.addmv, (zeros(0), zeros(5, 2), zeros(2))),
        (torch.dist, (zeros(2, 3), zeros(7, 3))),
        (lambda x: torch.roll(x, (1, 2), (0,)), (zeros(3),)),
        (lambda x: torch.block_diag(x, x), (zeros(1, 2, 3),)),
        (lambda x: F.pad(x, (2, -2)), (zeros(1),)),
        (lambda x: torch.split_with_sizes_copy(x, (1, 2)), (zeros(),)),
        (lambda x: torch.squeeze_copy(x, (0, 0)), (zeros(2, 3),)),
        (lambda x, b: torch.linalg.solve_triangular(x, b, upper=True), (zeros(3, 0, 3), zeros(3, 3, 5))),
        (lambda x: torch.nonzero_static(x, size=-1), (zeros(3),)),
        (lambda x: torch.linspace(0, 1, 3, dtype=torch.bool) * x, (zeros(3),)),
        (lambda x: torch.arange(2.0, 0.5, float("nan")) * x, (zeros(3),)),
        (lambda x: torch.empty_permuted((-1, 2), (0, 1)) * x, (zeros(2),)),
        (torch.addbmm, (zeros(5, 10), zeros(6, 5, 5), zeros(5, 5, 10))),
        (lambda x: torch.ops.aten._foreach_add.List([x], [x], alpha=0.5), (zeros(3, dtype=I64),)),
        (torch.ops.aten.huber_loss_backward, (zeros(3), zeros(3), zeros(3, dtype=I64), 1, 1.0)),
    ],
)
def test_what_a_kernel_refuses_whatever_the_sizes_is_refused(call, operands):
    with pytest.raises((RuntimeError, IndexError)) as eager:
        call(*operands)
    types = [AbstractTensor(from_tensor(x)) if isinstance(x, torch.Tensor) else x for x in operands]
    with pytest.raises(TypeRuleError) as ours:
        abstract_call(call, tuple(types), mode=AbstractMode())
    assert ours.value.eager is type(eager.value)


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda x, n: F.group_norm(x, 1, None, x.new_zeros(n).double()), F32),
        (lambda x, n: F.layer_norm(x, (n,), None, x.new_zeros(n).double()), F32),
        (lambda x, n: x.topk(n - 1), torch.complex64),
    ],
)
def test_so_it_is_where_attributes_are_symbolic(call, dtype):
    env = ShapeEnv()
    n = make_size(env, env.create("n", hint=4))
    with pytest.raises(TypeRuleError):
        abstract_call(call, (AbstractTensor(contiguous((2, n), dtype)), n), mode=AbstractMode())
    with pytest.raises(RuntimeError):
        call(torch.zeros(2, 4, dtype=dtype), 4)
    assert [relation for relation in env.relations if relation.operator == "=="] == []


def test_what_a_question_draws_is_of_no_stream_of_the_program():
    own = torch.Generator()
    before = torch.get_rng_state(), own.get_state()
    for generator in (None, own):
        ask(torch.ops.aten.multinomial.default, Question(), (contiguous((7,), F32), 1), {"generator": generator})
        ask(torch.ops.aten.normal_.default, Question(), (contiguous((7, 7), F32), 0.5), {"generator": generator})
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(own.get_state(), before[1])


RANDOM = {
    "rand": (torch.ops.aten.rand.default, ([3],)),
    "randn": (torch.ops.aten.randn.default, ([3],)),
    "rand_like": (torch.ops.aten.rand_like.default, (contiguous((3,), F32),)),
    "randint": (torch.ops.aten.randint.low, (1, 9, [3])),
    "randperm": (torch.ops.aten.randperm.default, (5,)),
    "normal": (torch.ops.aten.normal.float_float, (0.0, 1.0, [3])),
    "bernoulli": (torch.ops.aten.bernoulli.p, (contiguous((3,), F32), 0.5)),
    "dropout": (torch.ops.aten.native_dropout.default, (contiguous((3,), F32), 0.5, True)),
    "rrelu": (torch.ops.aten.rrelu_with_noise.default, (contiguous((3,), F32), contiguous((3,), F32), 0.1, 0.3, True)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_no_rule_draws_of_the_programs_stream(name):
    """Overloads without a generator, too, and those that take theirs by place."""
    func, args = RANDOM[name]
    before = torch.get_rng_state()
    given = tuple(AbstractTensor(one) if isinstance(one, Meta) else one for one in args)
    abstract_call(func, given, mode=AbstractMode())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_kernel_is_asked_once_for_operands_that_differ_in_sizes():
    calls = []
    question = Question(of=lambda self: calls.append(1) or {})
    for size in (2, 3):
        ask(torch.ops.aten.sin.default, Question(), (contiguous((size,), F32),), {})
    ask(torch.ops.aten.sin.default, question, (contiguous((2,), F32),), {})
    assert calls == [1]


def test_other_devices_are_not_asked_about():
    on_cuda = contiguous((3,), F32, torch.device("cuda", 0))
    ask(torch.ops.aten.gcd.default, Question(), (on_cuda, on_cuda), {})
    with pytest.raises(KernelMissing):
        ask(torch.ops.aten.gcd.default, Question(), (contiguous((3,), F32),) * 2, {})
