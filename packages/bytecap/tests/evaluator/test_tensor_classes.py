"""Programs run plain and captured: subclasses of tensors and parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


class Scaled(nn.Parameter):
    """A parameter with an attribute, a property and a method of its own."""

    factor = 2

    def __new__(cls, data, scale=3.0):
        made = super().__new__(cls, data)
        made.scale = scale
        return made

    @property
    def doubled(self):
        return self * self.factor

    def times(self, x):
        return self.doubled * x * self.scale


class Off(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Replaces(nn.Parameter):
    def mul(self, other):
        return self + other


class Layer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.weight = kind(torch.ones(3))

    def forward(self, x):
        return x * self.weight, type(x * self.weight) is torch.Tensor, isinstance(self.weight, nn.Parameter)


class Named(torch.Tensor):
    pass


class Adds(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result + 1 if func is torch.Tensor.mul else result


def ones() -> torch.Tensor:
    return torch.ones(3)


@PROGRAMS.add(lambda: Layer(Scaled), ones)
def parameter(layer, x):
    weight = layer.weight
    return layer(x), weight.times(x), weight.scale, type(weight) is Scaled, weight


@PROGRAMS.add(lambda: ones().as_subclass(Off))
def switched_off(x):
    return x * 2, type(x).__name__, type(x + 1).__name__, x.view(3, 1)


def plain(*tensors):
    return [(type(tensor).__name__, tensor.as_subclass(torch.Tensor)) for tensor in tensors]


@PROGRAMS.add(lambda: ones().as_subclass(Named), ones)
def named(x, y):
    return plain(x * 2, y - x, x.view(3, 1), torch.stack([x, y])), x.sum().shape, isinstance(x * 2, Named)


@PROGRAMS.add(lambda: ones().as_subclass(Adds), ones)
def replaced_by_torch_function(x, y):
    return plain(x * 2, y * x, x + y)


@PROGRAMS.add(lambda: ones().as_subclass(Adds))
def switched_off_for_a_while(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x * 2
    return plain(y, x * 2)


@PROGRAMS.add(lambda: ones().as_subclass(Named))
def written_class(x):
    x.add_(1)
    return x is x.mul_(2), plain(x)


@PROGRAMS.add(lambda: TwoTensor(ones(), ones() * 2))
def wrapper(x):
    y = torch.sin(x) + x
    y.add_(1)
    return y.a, y.b, type(y) is TwoTensor, y.shape, x.get_elem_a() is x.a, y.requires_grad


@PROGRAMS.add(ones)
def made_wrapper(x):
    return (TwoTensor(x, x * 2) * 3).b


@PROGRAMS.add(lambda: TwoTensor(ones(), ones()), refusal="BC008")
def attribute_of_a_wrapper(x):
    y = x * 2
    x.rate = 3
    return y.a, x.rate


@PROGRAMS.add(lambda: Layer(Replaces), ones, refusal="BC003")
def replaced_method(layer, x):
    return layer.weight.mul(x), layer.weight * x


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def test_what_the_class_says_is_guarded():
    layer = Layer(Scaled)
    call = optimize(lambda x: layer.weight.times(x), lambda c, _: executor(c), fullgraph=True)
    assert call(torch.ones(3)).tolist() == [6, 6, 6]
    layer.weight.scale = 5.0
    assert call(torch.ones(3)).tolist() == [10, 10, 10]
    try:
        Scaled.factor = 1
        assert call(torch.ones(3)).tolist() == [5, 5, 5]
    finally:
        Scaled.factor = 2
    layer.weight = nn.Parameter(torch.ones(3))
    with pytest.raises(AttributeError):
        call(torch.ones(3))
