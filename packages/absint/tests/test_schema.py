"""Facts read from schemas."""

import pytest
import torch

from absint.rules import FAMILIES, RULES
from absint.schema import Answers, functional_of, record_of
from absint.targets import resolve

aten = torch.ops.aten


@pytest.mark.parametrize("name", RULES)
def test_every_rule_names_an_overload_that_computes(name):
    """A rule belongs to an overload that autograd leaves whole, so that modes agree on the graph."""
    record = record_of(resolve(name))
    assert not record.is_composite


def test_families_are_disjoint():
    assert sum(map(len, FAMILIES.values())) == len(RULES)


@pytest.mark.parametrize(
    ("func", "answers", "aliases"),
    [
        (aten.add.Tensor, Answers.FRESH, (None,)),
        (aten.view.default, Answers.VIEW, ((0, "self"),)),
        (aten.split.Tensor, Answers.VIEW, ((0, "self"),)),
        (aten.add_.Tensor, Answers.SELF, ((0, "self"),)),
        (aten.t_.default, Answers.OTHER, ((0, "self"),)),
        (aten.add.out, Answers.OTHER, ((-1, "out"),)),
        (aten.native_batch_norm.default, Answers.OTHER, (None, None, None)),
    ],
)
def test_answers_and_aliases(func, answers, aliases):
    record = record_of(func)
    assert (record.answers, record.aliases) == (answers, aliases)


@pytest.mark.parametrize(
    ("func", "functional"),
    [
        (aten.add_.Tensor, aten.add.Tensor),
        (aten.add.out, aten.add.Tensor),
        (aten.max.dim_max, aten.max.dim),
        (aten.bernoulli_.float, aten.bernoulli.p),
        (aten.uniform_.default, aten.uniform.default),
        (aten.normal_.default, aten.normal_functional.default),
        (aten.copy_.default, aten.copy.default),
        (aten.zero_.default, aten.zero.default),
        (aten.fill_.Scalar, aten.fill.Scalar),
        (aten.index_put_.default, aten.index_put.default),
        (aten.masked_fill_.Scalar, aten.masked_fill.Scalar),
        (aten.add.Tensor, None),
    ],
)
def test_functional_twins(func, functional):
    assert functional_of(func) is functional


def test_hidden_writes_of_batch_norm():
    names = [name for _, name in record_of(aten.native_batch_norm.default).hidden_writes]
    assert names == ["running_mean", "running_var"]


def test_schema_writes_without_an_underscore():
    assert [n for _, n in record_of(aten._native_batch_norm_legit.default).writes] == ["running_mean", "running_var"]
