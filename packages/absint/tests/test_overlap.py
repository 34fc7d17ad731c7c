"""Writes of what is read, where sizes are symbolic: decided for every size at once, where views allow it."""

import pytest
import torch

from absint import AbstractMode, AbstractTensor, abstract_call, contiguous
from absint.errors import NoTypeRule
from absint.symbolic import ShapeEnv, make_size

APART = {
    "columns": lambda x, n: x[:, :n].add_(x[:, n:]),
    "rows": lambda x, n: x[0].add_(x[1]),
    "between": lambda x, n: x[:, ::2].add_(x[:, 1::2]),
    "halves of rows": lambda x, n: x[1:, :n].copy_(x[:-1, n:]),
    "itself": lambda x, n: x.mul_(x.t().t()),
}
OVERLAPPING = {
    "the rows before": lambda x, n: x[1:].add_(x[:-1]),
    "a column": lambda x, n: x.sub_(x[:, :1]),
    "the columns before": lambda x, n: x[:, 1:].copy_(x[:, :-1]),
    "rows put together": lambda x, n: torch.cat([x[:1], x[1:2]], out=x[:2]),
}


def call(function):
    """The relations that are assumed."""
    env = ShapeEnv()
    n, m = make_size(env, env.create("n", hint=5)), make_size(env, env.create("m", hint=7))
    abstract_call(function, (AbstractTensor(contiguous((m, 2 * n), torch.float32)), n), mode=AbstractMode())
    return env.relations


@pytest.mark.parametrize("name", APART)
def test_what_shares_no_element_is_written_whatever_the_sizes(name):
    assert [relation for relation in call(APART[name]) if relation.operator == "=="] == []


@pytest.mark.parametrize("name", OVERLAPPING)
def test_what_shares_elements_is_left_to_eager(name):
    with pytest.raises(NoTypeRule):
        call(OVERLAPPING[name])
