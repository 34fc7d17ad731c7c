"""Programs run plain and captured: state dicts, what tensors tell of their history, the state of autograd."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def ones() -> torch.Tensor:
    return torch.ones(2, 3)


def leaf() -> torch.Tensor:
    return torch.ones(2, 3, requires_grad=True)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


@PROGRAMS.add(model, ones)
def state(module, x):
    found = module.state_dict()
    return module(x), list(found), sum(value.sum() for value in found.values()), found._metadata


@PROGRAMS.add(model, model, ones)
def loaded(module, other, x):
    keys = module.load_state_dict(other.state_dict())
    return module(x), keys


@PROGRAMS.add(ones)
def attributes_of_an_ordered_dict(x):
    made = OrderedDict(a=x * 2)
    made.note = "mine"
    return made, made.note, getattr(made, "other", None), hasattr(made, "note")


def noted() -> OrderedDict:
    made = OrderedDict(a=1)
    made.note = 3
    return made


@PROGRAMS.add(noted, ones)
def attributes_of_an_outside_one(items, x):
    return x * items.note, getattr(items, "other", 5)


@PROGRAMS.add(leaf)
def history(x):
    y = x * 2
    known = y.grad_fn is None, x.grad_fn is None, y.grad_fn is not None and True, y.detach().grad_fn is None
    return (y if y.grad_fn else x), known


@PROGRAMS.add(leaf, refusal="BC004")
def kind_of_history(x):
    return type((x * 2).grad_fn).__name__


@PROGRAMS.add(leaf)
def anomalies_left_alone(x):
    with torch.autograd.set_detect_anomaly(False):
        return x * 2


@PROGRAMS.add(leaf, refusal="BC002")
def anomalies_looked_for(x):
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        return x * 2


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_same_as_plain(program):
    program.check()


def test_attributes_of_an_ordered_dict_are_guarded():
    call = optimize(lambda items, x: x * getattr(items, "note", 7), lambda c, _: executor(c), fullgraph=True)
    items = OrderedDict(a=1)
    assert call(items, torch.ones(1)).item() == 7
    items.note = 2
    assert call(items, torch.ones(1)).item() == 2
    items.note = 4
    assert call(items, torch.ones(1)).item() == 4
