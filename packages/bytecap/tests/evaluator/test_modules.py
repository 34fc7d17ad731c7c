"""Programs run plain and captured: modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


def seeded(make):
    def build():
        torch.manual_seed(1)
        return make()

    return build


class Mod(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5))})
        self.p = nn.ParameterList([nn.Parameter(tensor(4)) for _ in range(2)])
        self.bn = nn.BatchNorm1d(4)
        self.register_buffer("buf", torch.zeros(4))
        self.count = 0
        self.cfg = {"k": [1, 2]}
        self.last = None

    def helper(self, x, *, scale=1.0):
        return x * scale

    def forward(self, x, flag=True):
        for i, l in enumerate(self.l):
            x = l(x) if i != 1 else x + l(x)
        for l in self.l[1:]:
            x = l(x)
        for _k, m in self.d.items():
            x = m(x)
        x = self.d["a"](x)
        for p in self.p:
            x = x + p
        x = self.bn(x)
        self.count += 1
        self.last = x
        self.buf += x.detach().mean(0)
        self.cfg["k"].append(self.count)
        return self.helper(x, scale=2.0), len(self.l), "a" in self.d, [n for n, _ in self.named_parameters()][:2]


@PROGRAMS.add(seeded(Mod), matrix)
def module(m, x):
    return m(x)


@PROGRAMS.add(seeded(lambda: Mod().eval()), matrix)
def module_eval(m, x):
    return m(x)


@PROGRAMS.add(seeded(Mod), matrix)
def module_misc(m, x):
    n = sum(p.numel() for p in m.parameters())
    ch = [type(c).__name__ for c in m.children()]
    mods = [k for k, _ in m.named_modules()]
    list(m.state_dict().keys()) if False else None
    return x * n, ch, mods, m.training, m.get_submodule("l.0").weight.shape, isinstance(m, nn.Module)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def test_a_module_that_is_made_after_torchs_own_capture_ran(monkeypatch):
    from torch._dynamo.mutation_guard import GenerationTracker

    def noted(self, *args, **kwargs):
        made(self, *args, **kwargs)
        GenerationTracker.tag(self)

    made = nn.Module.__init__
    monkeypatch.setattr(nn.Module, "__init__", noted)
    compiled = optimize(lambda x: nn.ReLU()(x), lambda capture, inputs: executor(capture), fullgraph=True)
    assert torch.equal(compiled(-matrix()), torch.relu(-matrix()))


class MakesBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.old = nn.Buffer(torch.zeros(4))

    def forward(self, x, given):
        if not hasattr(self, "made"):
            self.made = nn.Buffer(torch.tensor([1.0, 2.0, 3.0, 4.0]))
            self.unsaved = nn.Buffer(x.mean(0), persistent=False)
            self.old = nn.Buffer(x.sum(0), persistent=False)
            marked = x[0] * 2
            marked._is_param = True
            self.scale = marked
            unmarked = nn.Buffer(x.mean(1))
            unmarked._is_buffer = False
            self.plain = unmarked
        self.given = given
        return x * self.made + self.unsaved, isinstance(nn.Buffer(x), nn.Buffer), isinstance(self.plain, nn.Buffer)


def registered(m: MakesBuffers) -> list[list[str]]:
    names = [sorted(values) for values in (m._buffers, m._parameters, m.state_dict(), m.__dict__)]
    return [*names, sorted(m._non_persistent_buffers_set)]


def test_buffers_that_are_made_in_forward_are_registered():
    plain, module = MakesBuffers(), MakesBuffers()
    compiled = optimize(module, lambda capture, inputs: executor(capture), fullgraph=True)
    for given in (nn.Buffer(torch.ones(4)), torch.ones(4)):
        expected, found = plain(matrix(), given), compiled(matrix(), given)
        assert torch.equal(expected[0], found[0])
        assert expected[1:] == found[1:]
        assert registered(plain) == registered(module)
