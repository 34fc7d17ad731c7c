"""The slow path: right types, counted uses, refusals, the user's random state left alone."""

import pytest
import torch

from absint import AbstractMode, AbstractTensor, contiguous, from_tensor
from absint.errors import DataDependentError, NoTypeRule
from absint.fallback import Fallback
from absint.schema import record_of


def abstract(*shape, dtype=torch.float32):
    return AbstractTensor(contiguous(shape, dtype))


@pytest.fixture
def library():
    library = torch.library.Library("absint_fallback", "FRAGMENT")
    yield library
    library._destroy()


@pytest.fixture
def eigen(library):
    """An op without a rule, with a kernel that wants a batch of square matrices."""
    library.define("eigen(Tensor x) -> (Tensor, Tensor)")
    for device in ("CPU", "CUDA"):
        library.impl("eigen", lambda x: tuple(torch.linalg.eigh(x)), device)
    return torch.ops.absint_fallback.eigen.default


def test_an_op_without_a_rule_runs_once_on_zeros_and_is_counted(eigen):
    mode = AbstractMode()
    with mode:
        values, vectors = eigen(abstract(2, 3, 3))
    expected = torch.linalg.eigh(torch.zeros(2, 3, 3))
    assert (values.meta, vectors.meta) == (from_tensor(expected[0]), from_tensor(expected[1]))
    assert mode.fallback.counts == {"absint_fallback.eigen.default": 1}


def test_custom_op_with_a_fake_kernel_uses_it(library):
    library.define("widen(Tensor x, int n) -> Tensor")
    calls = []

    def widen_fake(x, n):
        calls.append(n)
        return x.new_empty(*x.shape, n)

    torch.library.register_fake("absint_fallback::widen", widen_fake, lib=library)
    mode = AbstractMode()
    with mode:
        result = torch.ops.absint_fallback.widen(abstract(2, 3), 4)
    assert result.shape == (2, 3, 4)
    assert calls == [4]
    assert not mode.fallback.counts


def test_custom_op_without_a_fake_kernel_runs(library):
    library.define("narrowed(Tensor x) -> Tensor")
    library.impl("narrowed", lambda x: x[1:].clone(), "CPU")
    mode = AbstractMode()
    with mode:
        assert torch.ops.absint_fallback.narrowed(abstract(4)).shape == (3,)
    assert mode.fallback.counts["absint_fallback.narrowed.default"] == 1


def test_custom_in_place_op(library):
    library.define("bump(Tensor(a!) x) -> ()")
    x = abstract(4)
    with AbstractMode():
        assert torch.ops.absint_fallback.bump(x) is None
    assert x.storage_record.version == 1


def test_large_operands_are_refused(eigen):
    fallback = Fallback(max_bytes=100)
    with pytest.raises(NoTypeRule, match="bytes"):
        fallback.types(record_of(eigen), (contiguous((10, 10), torch.float32),), {})
    assert not fallback.counts


def test_a_kernel_that_refuses_zeros_is_a_coded_error(eigen):
    with pytest.raises(NoTypeRule, match="zeros"):
        Fallback().types(record_of(eigen), (contiguous((2, 3), torch.float32),), {})


@pytest.mark.parametrize("name", ["_unique2", "equal", "bincount", "allclose"])
def test_data_dependent_ops_are_refused(name):
    record = record_of(getattr(torch.ops.aten, name).default)
    with pytest.raises(DataDependentError):
        Fallback().types(record, (contiguous((2,), torch.int64),) * 2, {})


def test_a_kernel_for_types_runs_in_place_of_the_one_that_computes(library):
    seen = []
    library.define("note(Tensor x) -> Tensor")
    library.impl("note", lambda x: seen.append(x) or x.clone(), "CPU")
    library.impl("note", torch.empty_like, "Meta")
    record = record_of(torch.ops.absint_fallback.note.default)
    operand = contiguous((1 << 20, 1 << 20), torch.float16)
    assert Fallback().types(record, (operand,), {}) == operand
    assert seen == []


def test_random_kernels_leave_the_generator_alone(library):
    library.define("noise(Tensor x) -> Tensor")
    library.impl("noise", torch.rand_like, "CPU")
    record = record_of(torch.ops.absint_fallback.noise.default)
    assert record.effect == "acts"
    state = torch.get_rng_state()
    Fallback().types(record, (contiguous((4,), torch.float32),), {})
    assert torch.equal(state, torch.get_rng_state())


def test_assertions_on_data_do_not_run():
    mode = AbstractMode()
    with mode:
        assert torch._assert_async(abstract(dtype=torch.bool), "never") is None
    assert not mode.fallback.counts


def test_layouts_and_shared_operands_are_kept():
    record = record_of(torch.ops.aten.logaddexp2.default)
    tensor = torch.zeros(4, 3).t()[:, ::2]
    meta = from_tensor(tensor)
    assert Fallback().types(record, (meta, meta), {}) == from_tensor(torch.logaddexp2(tensor, tensor))


def test_true_device_comes_back(eigen):
    cuda = torch.device("cuda", 0)
    values, _ = Fallback().types(record_of(eigen), (contiguous((2, 2), torch.float32, cuda),), {})
    assert values.device == cuda


def test_the_gradient_of_a_filled_value_depends_on_data():
    """It counts the different indices: a run on zeros would say one, where torch does not tag the operator."""
    indices = AbstractTensor(contiguous((5,), torch.int64))
    with AbstractMode(), pytest.raises(DataDependentError):
        torch.ops.aten._unique(indices, False)
