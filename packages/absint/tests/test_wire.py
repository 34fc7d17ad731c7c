"""Arguments and types as document data, and back."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from absint.errors import SymbolicSize, UnwirableArgument
from absint.meta import contiguous, from_tensor, from_wire, to_wire
from absint.wire import from_arg, to_arg
from stagewire.graph import Complex, Ref
from stagewire.types import TensorType

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.complex_numbers(allow_nan=False),
    st.sampled_from(
        (torch.float32, torch.bfloat16, torch.bool, torch.device("cuda:1"), torch.device("cpu"), torch.strided,
         torch.channels_last, torch.contiguous_format, torch.preserve_format, ..., torch.add)
    ),
    st.builds(slice, st.none() | st.integers(), st.none() | st.integers(), st.none() | st.integers()),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def refuse(arg):
    raise AssertionError(f"{arg} was looked up")


@given(VALUES)
def test_values_round_trip(value):
    back = from_arg(to_arg(value), refuse)
    assert back == value
    assert type(back) is type(value)


def test_nan_and_sizes():
    assert math.isnan(from_arg(to_arg(math.nan), refuse))
    assert to_arg(complex(math.inf, 0)) == Complex(to_arg(math.inf), 0.0)
    assert from_arg(to_arg(torch.Size((2, 3))), refuse) == (2, 3)


def test_tensors_go_through_the_callbacks():
    tensor = torch.zeros(2)
    arg = to_arg([tensor, 1], encode=lambda value: Ref("x"))
    assert from_arg(arg, {Ref("x"): tensor}.__getitem__) == [tensor, 1]


@pytest.mark.parametrize("value", [torch.zeros(2), object(), {1: 2}, lambda: None, {3}])
def test_unwirable_values_are_refused(value):
    with pytest.raises(UnwirableArgument):
        to_arg(value)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, 3).t(), torch.zeros(()), torch.zeros(4, 0, dtype=torch.bool), torch.zeros(9)[3:7:2]]
)
def test_types_round_trip(tensor):
    meta = from_tensor(tensor)
    wire = to_wire(meta, requires_grad=True)
    assert wire.requires_grad
    assert from_wire(wire) == meta


def test_symbolic_sizes_need_a_binding():
    from stagewire.expr import parse_expr

    wire = TensorType("float32", (parse_expr("s0"), 2), (2, 1))
    with pytest.raises(SymbolicSize):
        from_wire(wire)
    assert from_wire(wire, lambda dim: 5) == contiguous((5, 2), torch.float32)
