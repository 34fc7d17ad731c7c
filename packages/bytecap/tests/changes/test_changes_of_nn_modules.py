"""What may change in modules: parameters, buffers, submodules, hooks of each kind, patched classes of torch.nn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_module

from bytecap.testing.changes import check_change, patched

T = torch.arange(6.0).reshape(2, 3)


class Several(nn.Module):
    """Every kind of registry and container."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        self.named = nn.ModuleDict({"x": nn.Tanh()})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.named_scales = nn.ParameterDict({"q": nn.Parameter(torch.ones(3))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.shift
        for layer in self.layers:
            x = layer(x)
        for name in self.named:
            x = self.named[name](x)
        for scale in self.scales:
            x = x * scale
        return x * self.named_scales["q"]


def threes() -> nn.Parameter:
    return nn.Parameter(torch.full((3,), 3.0))


def replace(owner: Any, name: str, value: Any) -> None:
    delattr(owner, name)
    setattr(owner, name, value)


def all_double(m: Several) -> None:
    for parameter in m.parameters():
        parameter.data = parameter.data.double()
    m.shift = m.shift.double()


CHANGES: dict[str, Callable[[Several], Any]] = {
    "a layer more": lambda m: m.layers.append(nn.Sigmoid()),
    "another layer": lambda m: m.layers.__setitem__(1, nn.Sigmoid()),
    "a layer less": lambda m: m.layers.__delitem__(1),
    "a named layer more": lambda m: m.named.update({"y": nn.Sigmoid()}),
    "another named layer": lambda m: m.named.update({"x": nn.Sigmoid()}),
    "a parameter of a list more": lambda m: m.scales.append(threes()),
    "another parameter of a list": lambda m: m.scales.__setitem__(0, threes()),
    "another named parameter": lambda m: m.named_scales.__setitem__("q", threes()),
    "forward hook": lambda m: m.first.register_forward_hook(lambda _, args, out: out * 2),
    "forward hook, keywords": lambda m: m.first.register_forward_hook(lambda _, a, k, out: out * 2, with_kwargs=True),
    "forward hook, always": lambda m: m.first.register_forward_hook(lambda _, a, out: out * 2, always_call=True),
    "pre-hook": lambda m: m.layers[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,)),
    "pre-hook, keywords": lambda m: m.layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True
    ),
    "backward hook": lambda m: m.first.register_full_backward_hook(lambda _, into, out: (into[0] * 2,)),
    "backward pre-hook": lambda m: m.first.register_full_backward_pre_hook(lambda _, out: (out[0] * 2,)),
    "buffer set to None": lambda m: setattr(m, "shift", None),
    "buffer becomes a parameter": lambda m: replace(m, "shift", threes()),
    "buffer becomes an attribute": lambda m: replace(m, "shift", torch.full((3,), 4.0)),
    "buffer becomes a number": lambda m: replace(m, "shift", 4.0),
    "buffer hidden": lambda m: m.__dict__.__setitem__("shift", torch.full((3,), 7.0)),
    "buffer deleted": lambda m: delattr(m, "shift"),
    "module hidden": lambda m: m.__dict__.__setitem__("first", nn.Linear(3, 3)),
    "module becomes a function": lambda m: replace(m, "first", lambda x: x * 7),
    "module set to None": lambda m: setattr(m, "first", None),
    "module becomes the identity": lambda m: setattr(m, "first", nn.Identity()),
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "to meta": lambda m: m.to("meta"),
    "no gradients": lambda m: m.requires_grad_(False),
    "forward of the instance": lambda m: setattr(m.first, "forward", lambda x: x * 5),
    "_call_impl of the instance": lambda m: setattr(m.first, "_call_impl", lambda x: x * 5),
    "compiled in place": lambda m: setattr(m.first, "_compiled_call_impl", lambda x: x * 3),
    "class": lambda m: setattr(m.first, "__class__", type("Other", (nn.Linear,), {"forward": lambda s, x: x * 5})),
    "strides of data": lambda m: setattr(m.first.weight, "data", torch.ones(3, 3).t()),
    "dtype of all data": all_double,
    "parameter that is a view": lambda m: setattr(m.first, "weight", nn.Parameter(torch.randn(12)[3:].view(3, 3))),
    "parameter that is no leaf": lambda m: m.first._parameters.update(weight=torch.ones(3, 3, requires_grad=True) * 2),
    "weight norm": lambda m: nn.utils.weight_norm(m.first),
    "parametrization": lambda m: nn.utils.parametrize.register_parametrization(m.first, "weight", nn.Sigmoid()),
    "tied": lambda m: setattr(m.layers[0], "weight", m.first.weight),
    "bias set to None": lambda m: setattr(m.first, "bias", None),
    "bias deleted": lambda m: m.first._parameters.pop("bias"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_a_module(name: str) -> None:
    torch.manual_seed(0)
    module = Several()

    def change() -> None:
        CHANGES[name](module)

    check_change((module, (T,), change))


GLOBAL_HOOKS: dict[str, Callable[[], Any]] = {
    "forward": lambda: torch_module.register_module_forward_hook(lambda m, args, out: out * 2),
    "pre-hook": lambda: torch_module.register_module_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    "backward": lambda: torch_module.register_module_full_backward_hook(lambda *args: None),
    "backward pre-hook": lambda: torch_module.register_module_full_backward_pre_hook(lambda *args: None),
}


@pytest.mark.parametrize("name", GLOBAL_HOOKS)
def test_hooks_of_all_modules(name: str) -> None:
    """(A handle is a context manager that removes its hook.)"""
    check_change((Several(), (T,), GLOBAL_HOOKS[name]))


@pytest.mark.parametrize("name", GLOBAL_HOOKS)
def test_hooks_of_all_modules_that_are_removed(name: str) -> None:
    with GLOBAL_HOOKS[name]() as hook:
        check_change((Several(), (T,), hook.remove))


def test_what_a_hook_of_all_modules_reads() -> None:
    rates = [2]
    with torch_module.register_module_forward_hook(lambda m, args, out: out * rates[0]):
        check_change((Several(), (T,), lambda: rates.__setitem__(0, 5)))


def thrice(self: Any, x: torch.Tensor, *others: Any) -> torch.Tensor:
    return x * 3


PATCHES: dict[str, tuple[Any, str, Any]] = {
    "a function": (F, "relu", lambda x, inplace=False: x * 3),
    "a C function": (F, "linear", lambda x, weight, bias=None: x * 3),
    "a function of torch": (torch, "tanh", lambda x: x * 3),
    "forward": (nn.Linear, "forward", thrice),
    "forward, of another class": (nn.Tanh, "forward", thrice),
    "call of a class": (nn.Linear, "__call__", thrice),
    "call of all modules": (nn.Module, "__call__", thrice),
    "_call_impl of all modules": (nn.Module, "_call_impl", thrice),
    "getattr of a class": (nn.Linear, "__getattr__", lambda self, name: torch.zeros(3)),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patched_library(name: str) -> None:
    check_change((Several(), (T,), lambda: patched(*PATCHES[name])))
