"""The slow path: right types, counted uses, refusals, the user's random state left alone."""

import pytest
import torch

from absint import AbstractMode, AbstractTensor, contiguous, from_tensor
from absint.errors import DataDependentError, NoTypeRule
from absint.fallback import Fallback
from absint.rules import RULES
from absint.schema import record_of


def abstract(*shape, dtype=torch.float32):
    return AbstractTensor(contiguous(shape, dtype))


@pytest.fixture
def library():
    library = torch.library.Library("absint_fallback", "FRAGMENT")
    yield library
    library._destroy()


def test_an_op_without_a_rule_runs_once_on_zeros_and_is_counted():
    real = torch.zeros(2, 3, 3)
    func = torch.ops.aten._linalg_eigh.default
    assert str(func) not in RULES
    mode = AbstractMode()
    with mode:
        values, vectors = func(abstract(2, 3, 3))
    expected = func(real)
    assert (values.meta, vectors.meta) == (from_tensor(expected[0]), from_tensor(expected[1]))
    assert mode.fallback.counts == {"aten._linalg_eigh.default": 1}


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


def test_large_operands_are_refused():
    fallback = Fallback(max_bytes=100)
    record = record_of(torch.ops.aten._linalg_eigh.default)
    with pytest.raises(NoTypeRule, match="bytes"):
        fallback.types(record, (contiguous((10, 10), torch.float32),), {})
    assert not fallback.counts


def test_a_kernel_that_refuses_zeros_is_a_coded_error():
    record = record_of(torch.ops.aten._linalg_eigh.default)
    with pytest.raises(NoTypeRule, match="zeros"):
        Fallback().types(record, (contiguous((2, 3), torch.float32),), {})


def test_data_dependent_ops_are_refused():
    with pytest.raises(DataDependentError):
        Fallback().types(record_of(torch.ops.aten._unique2.default), (contiguous((2,), torch.float32),), {})


def test_random_kernels_leave_the_generator_alone():
    func = torch.ops.aten.rrelu_with_noise_functional.default
    assert str(func) not in RULES
    state = torch.get_rng_state()
    x = contiguous((4,), torch.float32)
    Fallback().types(record_of(func), (x, x, 0.1, 0.3, True), {})
    assert torch.equal(state, torch.get_rng_state())


def test_layouts_and_shared_operands_are_kept():
    record = record_of(torch.ops.aten.logaddexp2.default)
    tensor = torch.zeros(4, 3).t()[:, ::2]
    meta = from_tensor(tensor)
    assert Fallback().types(record, (meta, meta), {}) == from_tensor(torch.logaddexp2(tensor, tensor))


def test_true_device_comes_back():
    record = record_of(torch.ops.aten._linalg_eigh.default)
    cuda = torch.device("cuda", 0)
    values, _ = Fallback().types(record, (contiguous((2, 2), torch.float32, cuda),), {})
    assert values.device == cuda
