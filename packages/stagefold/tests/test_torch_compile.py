"""Our stages behind torch's own fronts: torch.compile, symbolic_trace, make_fx, torch.export, AOTAutograd."""

from __future__ import annotations

import copy
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.utils.checkpoint import checkpoint

import stagefold
import stagewire
from stagefold.backend import StagefoldBackend
from stagefold.errors import OtherInputs

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(nn.Module):
    """A buffer that is written, a batch norm, a shape that the program computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
        self.tail = nn.Linear(16, 4)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> Any:
        y = self.tail(self.head(x)).reshape(x.shape[0], -1).softmax(-1)
        self.scale.mul_(1.5)
        return y * by * self.scale, x.shape[0] * 2


@pytest.fixture(autouse=True)
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what is compiled in a test."""
    names: list[str] = []
    compiled = StagefoldBackend._compiled

    def counted(self: StagefoldBackend, capture: Any, *more: Any) -> Any:
        names.append(capture.code.name)
        return compiled(self, capture, *more)

    monkeypatch.setattr(StagefoldBackend, "_compiled", counted)
    yield names
    torch._dynamo.reset()


def compared(call: Callable[..., Any], ours: nn.Module, sizes: tuple[int, ...], make: Any = Model) -> None:
    """Training steps against eager, of the weights that `ours` had at seed 0: results, gradients, buffers."""
    torch.manual_seed(0)
    eager = make()
    for size in sizes:
        x, by = torch.randn(size, 8), torch.tensor(2.0)
        want, have = eager(x, by), call(x, by)
        torch.testing.assert_close(have[0], want[0])
        assert have[1] == want[1]
        for made in (want, have):
            made[0].square().sum().backward()
    parameters, buffers = dict(ours.named_parameters()), dict(ours.named_buffers())
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(parameters[name].grad, parameter.grad, rtol=1e-4, atol=1e-4)  # sums of steps
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(buffers[name], buffer)


def seeded() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.mark.parametrize(("dynamic", "count"), [(None, 2), (True, 1), (False, 4)])
def test_torch_compile_with_other_sizes(dynamic: bool | None, count: int, compilations: list[str]) -> None:
    model = seeded()
    compared(torch.compile(model, backend="stagefold", dynamic=dynamic), model, (4, 6, 9, 12))
    assert len(compilations) == count


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_the_stages_assume_of_sizes_is_guarded(dynamic: bool | None) -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        with torch.no_grad():
            z = x.sum(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.T
        x = x.clone()
        x[0] = n
        x += 1
        if x.shape[0] % 2 == 0:
            y = y * 2
        return y.float().sum() + z.sum(), x.shape[0] * 2, x.reshape(-1, 2).sum(0) * n, x[1:-1], (x.shape[0], n)

    compiled = torch.compile(f, backend="stagefold", dynamic=dynamic)
    for size, n in ((4, 3), (6, 5), (9, 7), (12, 8), (2, 2), (1, 1)):
        x = torch.randn(size, 2)
        torch.testing.assert_close(compiled(x, n), f(x, n), rtol=1e-2, atol=1e-2)


def test_torch_compile_with_stages() -> None:
    called = []

    def left_to_aten(grad: stagewire.Grad) -> stagewire.Prim:
        called.append(grad)
        return stagewire.Prim(binding=grad.binding, joint=grad.joint)

    model = seeded()
    options = {"stages": {"primops": left_to_aten}, "verify": True}
    compared(torch.compile(model, backend="stagefold", options=options), model, (4, 6, 9))
    assert len(called) == 2


def test_checkpoints_of_torch_compile() -> None:
    model = seeded()
    by = torch.tensor(2.0)
    compiled = torch.compile(lambda x, by: checkpoint(model, x, by, use_reentrant=False), backend="stagefold")
    x = torch.randn(4, 8)
    expected = copy.deepcopy(model)(x, by)[0]
    torch.testing.assert_close(compiled(x, by)[0], expected)


SQUARES = """
import torch._dynamo
from stagefold.adapters.dynamo import compile_graph

def square(p, x, approximate="none"):
    return p.mul(x, x)

@torch._dynamo.register_backend
def gelu_is_square(module, inputs):
    return compile_graph(module, inputs, options={"primops.decompositions": {"aten.gelu.default": square}})
"""


def test_the_accuracy_minifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own: a right program passes, at symbolic sizes too; a planted fault is reported, and made small."""
    (tmp_path / "squares.py").write_text(SQUARES)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("squares")
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.GELU(), nn.Linear(4, 4))
    with torch._dynamo.config.patch(repro_after="dynamo", repro_level=4, debug_dir_root=str(tmp_path)):
        compiled = torch.compile(model, backend="stagefold")
        for size in (3, 5):
            x = torch.randn(size, 8)
            torch.testing.assert_close(compiled(x), model(x))
        torch._dynamo.reset()
        with pytest.raises(Exception, match="Bad accuracy"):
            torch.compile(model, backend="gelu_is_square")(torch.randn(3, 8))
    (script,) = tmp_path.rglob("minifier_launcher.py")
    script.write_text("import squares\n" + script.read_text())
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    subprocess.run([sys.executable, script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, check=True)
    smallest = (tmp_path / "repro.py").read_text()
    assert "gelu(" in smallest
    assert "linear(" not in smallest
    assert "tanh" not in smallest


@pytest.mark.parametrize("settings", [{"options": {"verify": True}}, {"mode": "max-autotune"}])
def test_the_minifier_would_lose_options(settings: dict[str, Any], tmp_path: Path) -> None:
    with torch._dynamo.config.patch(repro_after="dynamo", repro_level=4, debug_dir_root=str(tmp_path)):
        compiled = torch.compile(nn.GELU(), backend="stagefold", **settings)
        with pytest.raises(Exception, match=r"SF001: torch's minifier leaves[^$]*register_backend"):
            compiled(torch.randn(3, 8))
    assert not list(tmp_path.rglob("*.py"))


class Wrapped(nn.Module):
    """symbolic_trace takes no modules as whole programs: it leaves these as calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.GELU())

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> Any:
        return self.head(x) * by, x.shape[0]


def test_symbolic_trace() -> None:
    torch.manual_seed(0)
    model = Wrapped()
    capture, held = stagefold.from_fx(torch.fx.symbolic_trace(model), [torch.randn(4, 8), torch.tensor(2.0)])
    compared(stagefold.compile_capture(capture, held, options={"verify": True}), model, (4, 4), Wrapped)


class Masked(nn.Module):
    """torch.fx calls what stands for `input` "input_1", for a builtin has that name."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(3, 4)])

    def forward(self, input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.parts[0](input) * mask


@pytest.mark.parametrize("front", ["symbolic_trace", "export"])
def test_inputs_have_the_names_of_the_program(front: str) -> None:
    given = (torch.randn(2, 3), torch.randn(2, 4))
    if front == "export":
        capture, held = stagefold.from_export(torch.export.export(Masked(), given))
    else:
        capture, held = stagefold.from_fx(torch.fx.symbolic_trace(Masked()), given)
    assert [one.value.name for one in capture.inputs] == ["input", "mask", "parts_0_weight", "parts_0_bias"]
    with pytest.raises(OtherInputs, match="input input is f64"):
        stagefold.compile_capture(capture, held)(given[0].double(), given[1])


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_make_fx(mode: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    model, state = seeded(), seeded().state_dict()
    examples = (torch.randn(4, 8), torch.tensor(2.0))
    traced = make_fx(model, tracing_mode=mode, _allow_non_fake_inputs=True)(*examples)
    model.load_state_dict(state)
    capture, held = stagefold.from_fx(traced, examples)
    assert bool(capture.symbols) == (mode == "symbolic")
    compared(stagefold.compile_capture(capture, held), model, (4, 4) if mode == "real" else (4, 6, 3))


@pytest.mark.parametrize("backend", ["stagefold", "eager"])
def test_export(backend: str, compilations: list[str]) -> None:
    model = seeded()
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(model, (torch.randn(4, 8), torch.tensor(2.0)), dynamic_shapes=({0: batch}, None))
    capture, held = stagefold.from_export(exported)
    assert [(one.lower, one.upper) for one in capture.symbols] == [(2, 64)]
    call = stagefold.compile_capture(capture, held, backend=backend)
    torch.manual_seed(0)
    eager = Model()
    for size in (4, 6, 3):
        x, by = torch.randn(size, 8), torch.tensor(2.0)
        torch.testing.assert_close(call(x, by)[0], eager(x, by)[0])
    with pytest.raises(OtherInputs, match="dimensions"):
        call(torch.randn(8), torch.tensor(2.0))
    with pytest.raises(OtherInputs, match="f64"):
        call(torch.randn(4, 8, dtype=torch.float64), torch.tensor(2.0))
    assert len(compilations) == (backend == "stagefold")


def test_module_of_export(compilations: list[str]) -> None:
    """`ep.module()` checks its inputs under a change of the settings of torch's own capture."""
    model = seeded()
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(model, (torch.randn(4, 8), torch.tensor(2.0)), dynamic_shapes=({0: batch}, None))
    module = exported.module()
    assert module._guards_fn is not None
    call = stagefold.compile(module, fullgraph=True)
    compared(call, module, (4, 6, 9, 3))
    assert len(compilations) == 2
    for tried in (module, stagefold.compile(module)):
        with pytest.raises(AssertionError, match="<= 64"):
            tried(torch.randn(65, 8), torch.tensor(2.0))
        with pytest.raises(ValueError, match="input tree spec"):
            tried(torch.randn(4, 8))


def test_compilers_of_aot_autograd(compilations: list[str]) -> None:
    """Ours for each direction of torch's AOTAutograd."""
    from torch._dynamo.backends.common import aot_autograd

    from stagefold.adapters.dynamo import compile_fx

    model = seeded()
    backend = aot_autograd(fw_compiler=compile_fx, bw_compiler=compile_fx)
    compared(torch.compile(model, backend=backend), model, (4, 6, 9))
    assert len(compilations) == 4
