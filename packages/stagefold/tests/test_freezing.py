"""`options={"freeze": True}`: the same results, whatever happens to the weights."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import stagefold
from stagefold import Capsule
from stagefold.freezing import fold as layouts
from stagefold.freezing import freeze
from stagewire.grad import Grad
from stagewire.verify import verify


@pytest.fixture(autouse=True)
def small_programs_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(layouts, "LEAST_WEIGHT", 1)
    monkeypatch.setattr(layouts, "_packs_products", lambda dtype: dtype in ("float32", "bfloat16"))


class Residual(nn.Module):
    """Convolutions with what may follow them: norm, sum, activation; a branch, a concatenation, a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.other = nn.BatchNorm2d(8, affine=False)
        self.third = nn.Conv2d(8, 4, 1, stride=2)
        self.up = nn.ConvTranspose2d(4, 8, 2, stride=2)
        self.head = nn.Linear(16, 5)
        with torch.no_grad():
            for norm in (self.norm, self.other):
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(x + self.other(self.second(x)))
        y = self.up(nn.functional.silu(self.third(x)))
        return self.head(torch.cat((nn.functional.max_pool2d(x, 2), nn.functional.avg_pool2d(y, 2)), 1).mean((2, 3)))


def frozen(module: nn.Module) -> nn.Module:
    return stagefold.compile(module, options={"freeze": True})


def check(module: nn.Module, compiled: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


def test_the_same_results() -> None:
    torch.manual_seed(0)
    module = Residual().eval()
    compiled = frozen(module)
    for size in (8, 8, 12):
        check(module, compiled, torch.randn(2, 3, size, size))
    check(module, compiled, torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last))


CHANGES = {
    "a write": lambda m: m.first.weight.mul_(2.0),
    "a write into a part": lambda m: m.second.weight[0].add_(1.0),
    "another parameter": lambda m: setattr(m, "second", copy.deepcopy(m.second).requires_grad_(False)) or
    m.second.weight.neg_(),
    "data that is replaced": lambda m: setattr(m.third.weight, "data", torch.randn(4, 8, 1, 1)),
    "a buffer": lambda m: m.norm.running_mean.add_(1.0),
    "another buffer": lambda m: setattr(m.other, "running_var", torch.rand(8) + 1.0),
    "a state dict": lambda m: m.load_state_dict(Residual().state_dict()),
    "the bias of a product": lambda m: m.head.bias.add_(3.0),
    "the weight of a packed convolution": lambda m: m.third.weight.sub_(0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changed_weights_are_noticed(name: str) -> None:
    torch.manual_seed(0)
    module, x = Residual().eval(), torch.randn(2, 3, 8, 8)
    compiled = frozen(module)
    check(module, compiled, x)
    with torch.no_grad():
        before = module(x)
        CHANGES[name](module)
        assert not torch.allclose(module(x), before)
    check(module, compiled, x)
    check(module, compiled, x)


class Parts(nn.Module):
    """Weights of convolutions and products that are parts of parameters, turned or not."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(2, 4, 4, 3, 3))
        self.table = nn.Parameter(torch.randn(3 * 6, 4))
        self.turned = nn.Parameter(torch.randn(6, 4))
        self.bias = nn.Parameter(torch.randn(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.conv2d(x, self.filters[0], self.bias[0], padding=1)
        x = nn.functional.conv2d(x, self.filters[1].transpose(0, 1), self.bias[1], padding=1).mean((2, 3))
        query, key, value = (nn.functional.linear(x, part) for part in self.table.chunk(3))
        return (
            torch.addmm(self.bias[0], query * key, self.turned) + value @ self.table[:6] @ self.table[6:10].t()[:, :4]
        )


@pytest.mark.parametrize("name", ["filters", "table", "turned", "bias"])
def test_parts_of_parameters_that_change_are_noticed(name: str) -> None:
    torch.manual_seed(0)
    module, x = Parts().eval(), torch.randn(2, 4, 8, 8)
    compiled = frozen(module)
    with torch.no_grad():
        for change in (lambda w: w, lambda w: w.mul_(2.0), lambda w: w[:1].add_(1.0), lambda w: w):
            change(getattr(module, name))
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-2)


def test_an_optimizer_between_calls() -> None:
    torch.manual_seed(0)
    module, x = Residual(), torch.randn(4, 3, 8, 8)
    compiled = frozen(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        module.train()
        compiled(x).square().mean().backward()  # has a backward: not frozen
        optimizer.step()
        optimizer.zero_grad()
        module.eval()
        check(module, compiled, x)


def test_inference_mode_and_autocast() -> None:
    torch.manual_seed(0)
    module, x = Residual().eval(), torch.randn(2, 3, 8, 8)
    compiled = frozen(module)
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    check(module, compiled, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), module(x), rtol=5e-2, atol=5e-2)


WITHOUT_HALF_PRECISION = """
import sys, torch
from torch import nn
import stagefold
from stagefold.freezing import fold

assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
fold.LEAST_ELEMENTS = 1
torch.manual_seed(0)
module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
compiled = stagefold.compile(module, options={"freeze": True, "cache_dir": sys.argv[1]})
for dtype in (torch.float32, torch.bfloat16):
    for size in (8, 9):
        x = torch.randn(2, 3, size, size)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            found, expected = compiled(x), module(x)
        assert found.dtype is expected.dtype is dtype
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is limited by the name of an instruction set")
def test_a_processor_without_half_precision(tmp_path: Path) -> None:
    """There oneDNN packs no weights of bfloat16."""
    limits = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    command = [sys.executable, "-c", WITHOUT_HALF_PRECISION, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | limits, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_results_are_the_callers_own() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(4.0))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.weight.exp(), x + self.weight.exp()

    module = Table()
    compiled = frozen(module)
    with torch.no_grad():
        for _ in range(2):
            first, second = compiled(torch.ones(4))
            torch.testing.assert_close(first, module.weight.exp())
            torch.testing.assert_close(second, 1 + module.weight.exp())
            first.zero_(), second.zero_()


def test_random_numbers_are_drawn_each_time() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + nn.functional.dropout(self.weight, 0.5)

    compiled = frozen(Noisy())
    with torch.no_grad():
        draws = [compiled(torch.zeros(64)) for _ in range(3)]
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[1], draws[2])


def documents(module: nn.Module, x: torch.Tensor, directory: Path) -> Grad:
    with torch.no_grad():
        stagefold.compile(module, options={"trace_dir": str(directory), "cache": False})(x)
    capsule = Capsule(*directory.glob("*.capsule"))
    document = capsule.document(capsule.runs[0], "grad")
    assert isinstance(document, Grad)
    return document


def test_documents(tmp_path: Path) -> None:
    made = freeze(documents(Residual().eval(), torch.randn(2, 3, 8, 8), tmp_path))
    assert made is not None
    assert made.prepare is not None
    verify(made.prepare)
    targets = [node.target for node in made.main.joint.nodes]
    assert targets.count("stagefold.product.default") == 1
    assert targets.count("stagefold.convolution.default") == 3
    assert targets.count("aten.convolution.default") == 1  # the transposed one
    assert not any("batch_norm" in target or target == "aten.relu.default" for target in targets)
    posts = [node.args[7:] for node in made.main.joint.nodes if node.target == "stagefold.convolution.default"]
    assert [post for post, _ in posts] == ["relu", "relu", "swish"]
    assert [other is not None for _, other in posts] == [False, True, False]
    prepared = {value.name for value in made.main.joint.inputs[len(made.prepare.binding.inputs) :]}
    assert len(prepared) == len(made.prepare.joint.outputs) == 4  # two weights, two biases
    used = [given.name for given in made.prepare.binding.inputs if given.used]
    assert "args_0" not in used
    assert len(used) == 9


def test_products_of_weights_alone_run_once(tmp_path: Path) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(4, 6))
            self.linear = nn.Linear(6, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.linear(self.table)

    made = freeze(documents(Positions(), torch.randn(4, 8), tmp_path))
    assert made is not None
    assert made.prepare is not None
    assert [node.target for node in made.main.joint.nodes] == ["aten.add.Tensor"]


def test_small_convolutions_and_products_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LEAST_ELEMENTS", 1 << 30)
    monkeypatch.setattr(layouts, "LEAST_WEIGHT", 1 << 30)
    made = freeze(documents(Residual().eval(), torch.randn(2, 3, 8, 8), tmp_path))
    assert made is not None
    assert not any(node.target.startswith("stagefold.") for node in made.main.joint.nodes)


def test_a_program_with_gradients_is_left_alone(tmp_path: Path) -> None:
    module = nn.Linear(3, 3)
    stagefold.compile(module, options={"trace_dir": str(tmp_path), "cache": False})(torch.randn(2, 3)).sum().backward()
    capsule = Capsule(*tmp_path.glob("*.capsule"))
    assert freeze(capsule.document(capsule.runs[0], "grad")) is None  # type: ignore[arg-type]
