"""Functions of some arguments, bound to the signature of an overload."""

import functools

import pytest
import torch

from absint.rules import RULES
from absint.signatures import bind
from absint.targets import resolve

aten = torch.ops.aten


def test_parameters_take_arguments_by_name_and_defaults_of_the_schema():
    bound = bind(lambda alpha, self: (self, alpha), aten.add.Tensor)
    assert bound("x", "y") == ("x", 1)
    assert bound("x", "y", alpha=3) == ("x", 3)


def test_parameters_before_a_slash_take_arguments_in_order():
    second = bind(lambda first, second, /: second, aten.pow.Tensor_Scalar)
    assert second("x", 2) == 2


def test_own_defaults_are_for_overloads_without_the_argument():
    def summed(self, dim=None, keepdim=False):
        return dim, keepdim

    assert bind(summed, aten.sum.default)("x") == (None, False)
    assert bind(summed, aten.sum.dim_IntList)("x", [1], True) == ([1], True)


def test_arguments_that_nobody_looks_at_may_be_missing():
    """As where an in-place overload has a default that its functional twin has not."""
    assert bind(lambda self: self, aten.bernoulli.p)("x") == "x"


def test_a_function_of_all_arguments_is_itself():
    def product(self, other):
        return self, other

    assert bind(product, aten.mul.Tensor) is product


def test_the_dtype_of_a_schema_is_none():
    assert bind(lambda dtype: dtype, aten.randint.default)(3, [2]) is None


def test_wrapped_and_partial_functions_keep_their_names():
    inner = bind(functools.partial(lambda mode, self, dim: (mode, dim), "m"), aten.select.int)
    assert inner("x", 1, 0) == ("m", 1)


def test_arguments_named_like_words_of_python():
    assert bind(lambda self: self, resolve("aten.random.from"))("x", 0, 5) == "x"


def test_a_name_that_the_schema_lacks_is_an_error():
    with pytest.raises(TypeError, match="no argument width"):
        bind(lambda self, width: self, aten.relu.default)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_bound_to_its_overload(name):
    assert callable(RULES[name].bound(resolve(name)))
