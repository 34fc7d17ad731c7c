"""A target that another distribution registers: found by its name, verified, cached by its code; ours come likewise."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stagefold
from codegen import Codegen, Options, targets
from codegen.choices import Bound
from codegen.errors import BadTarget, UnknownTarget, UnsupportedDevice, UnsupportedKernel
from codegen.load import run_functions
from integration_tests.plugins import ROOT, installed
from integration_tests.zoo.traces import traced
from stagefold.cli import main
from stagefold.errors import BadStage, BrokenDocument
from stagefold.options import parse_options
from stagefold.pipeline import Pipeline
from stagefold.testing.conformance import conform
from stagewire.parser import parse_document


@pytest.fixture
def numpy_target(tmp_path: Path) -> Iterator[None]:
    with installed(ROOT / "examples" / "backends" / "numpy", tmp_path / "installed"):
        yield


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.5), nn.Linear(16, 4), nn.Softmax(-1)
    )


def compiled(program: Any, **options: Any) -> Any:
    return stagefold.compile(program, fullgraph=True, options=options)


def test_it_trains_at_every_size(numpy_target: None) -> None:
    model = network()
    other = copy.deepcopy(model)
    program = compiled(other, **{"codegen.target": "numpy"})
    for rows in (6, 9, 12, 1):
        x = torch.randn(rows, 8)
        results = []
        for call in (model, program):
            torch.manual_seed(1)
            results.append(call(x))
            results[-1].square().sum().backward()
        torch.testing.assert_close(*results)
    for want, have in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(have.grad, want.grad)


def test_documents_name_it(numpy_target: None, tmp_path: Path) -> None:
    compiled(lambda x: torch.softmax(x, -1), **{"codegen.target": "numpy", "trace_dir": str(tmp_path)})(
        torch.ones(2, 3)
    )
    (program,) = traced(tmp_path, "program")
    assert program.forward.target == "numpy"


@pytest.mark.parametrize("only", ["softmax", "gelu", "writes", "drops", "var", "empty"])
def test_it_keeps_the_meaning(numpy_target: None, only: str) -> None:
    assert [m[:2] for m in conform("codegen", "codegen", only=only, options={"codegen.target": "numpy"})] == []


def test_the_command_line_takes_it(numpy_target: None, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["conform", "codegen", "codegen", "--only", "relu float32", "--option", "codegen.target=numpy"]
    assert main(chosen) == 0, capsys.readouterr().out


def test_ops_that_it_lacks_stay_with_aten(numpy_target: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.find("numpy"), "lacks", frozenset(("erf", "bfloat16")), raising=False)
    options = {"codegen.target": "numpy", "trace_dir": str(tmp_path), "cache": False}
    x = torch.randn(7)
    program = lambda x: nn.functional.gelu(x) + (x.bfloat16() * 3).float()  # noqa: E731
    torch.testing.assert_close(compiled(program, **options)(x), program(x))
    (prim,) = traced(tmp_path, "prim")
    called = {node.target for node in prim.joint.nodes}
    assert "aten.gelu.default" in called
    assert "prims.erf" not in called
    assert "aten.mul.Tensor" in called, "in bfloat16"


LOOP = """loop 2 {
  binding { inputs { BoundInput(name="x", type=f32[4]) } outputs { Fresh(result=0) } }
  forward {
    buffers { %x: f32[4] = input  %y: f32[4] = kernel }
    inputs = ("x",)
    outputs = (%y,)
    steps { kernel k for i in 4 { section { %a: f32 = load %x[i]  %b: f32 = erf(%a)  store %y[i] = %b } } }
  }
}"""


def test_what_it_lacks_is_refused_by_name(numpy_target: None, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = parse_document(LOOP)
    assert Codegen().run(loop, Options(target="numpy")).forward.target == "numpy"
    monkeypatch.setattr(targets.find("numpy"), "lacks", frozenset(("erf",)), raising=False)
    with pytest.raises(UnsupportedKernel, match="the target 'numpy' has no code for erf in k"):
        Codegen().run(loop, Options(target="numpy"))


def test_other_devices_are_refused(numpy_target: None) -> None:
    on_cuda = parse_document(LOOP.replace("f32[4]", "f32[4]@cuda:0"))
    with pytest.raises(UnsupportedDevice, match="x is a tensor on the device cuda:0"):
        Codegen().run(on_cuda, Options(target="numpy"))
    elsewhere = parse_document(LOOP.replace("f32[4]", "f32[4]@xpu:0"))
    with pytest.raises(UnsupportedDevice, match="no target is registered for the device xpu"):
        Codegen().run(elsewhere)


def test_what_it_emits_is_verified(numpy_target: None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.find("numpy")
    emit = target.emit

    def forgets(*arguments: Any) -> Any:
        unit = emit(*arguments)
        return type(unit)(**{name: getattr(unit, name) for name in unit.__struct_fields__} | {"instructions": ()})

    monkeypatch.setattr(target, "emit", forgets)
    with pytest.raises(BrokenDocument, match=r"what stage 'codegen' made in slot 'codegen' breaks \[R5"):
        compiled(lambda x: x + 1, **{"codegen.target": "numpy", "cache": False})(torch.ones(3))


def test_what_its_kernels_raise_names_it(numpy_target: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's ValueError is not taken for one of the program."""

    def fails(*given: Any) -> None:
        raise ValueError("shapes do not match")

    target = targets.find("numpy")
    monkeypatch.setattr(target, "load", lambda units, *given: [run_functions(one, AnyName(fails)) for one in units])
    with pytest.raises(BadStage, match="target 'numpy' made of a unit raised ValueError: shapes do not match"):
        compiled(lambda x: x.exp(), **{"codegen.target": "numpy", "cache": False})(torch.ones(3))


@pytest.mark.parametrize(
    ("makes", "message"),
    [(lambda *inputs: (inputs[0][:1],), r"output 0 of .* is torch.float32\[1\], where the unit has f32\[3\]"),
     (lambda *inputs: None, "returned a NoneType, not a tuple of its outputs")],
)  # fmt: skip
def test_wrong_results_of_what_it_loads_name_it(
    numpy_target: None, monkeypatch: pytest.MonkeyPatch, makes: Any, message: str
) -> None:
    monkeypatch.setattr(
        targets.find("numpy"), "load", lambda units, *given: [Bound(makes, lambda: units[0]) for _ in units]
    )
    with pytest.raises(BadStage, match=message):
        compiled(lambda x: x.exp(), **{"codegen.target": "numpy", "cache": False})(torch.ones(3))


@pytest.mark.parametrize(
    ("made", "message"),
    [(None, r"load\(\) of the target 'numpy' returned a NoneType for 1 units"),
     ([], r"returned 0 of them for 1 units"),
     ([torch.exp], "made a builtin_function_or_method of a unit, not a Bound")],
)  # fmt: skip
def test_a_wrong_loader_is_named(numpy_target: None, monkeypatch: pytest.MonkeyPatch, made: Any, message: str) -> None:
    monkeypatch.setattr(targets.find("numpy"), "load", lambda units, *given: made)
    with pytest.raises(BadTarget, match=message):
        compiled(lambda x: x.exp(), **{"codegen.target": "numpy", "cache": False})(torch.ones(3))


def test_a_loader_that_raises_and_a_wrong_emitter_are_named(
    numpy_target: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"codegen.target": "numpy", "cache": False}
    monkeypatch.setattr(targets.find("numpy"), "load", lambda units, *given: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        compiled(lambda x: x.exp(), **options)(torch.ones(3))
    assert raised.value.__notes__ == ["in load() of the target 'numpy'"]
    monkeypatch.setattr(targets.find("numpy"), "emit", lambda *given: None)
    with pytest.raises(BadTarget, match=r"emit\(\) of the target 'numpy' returned a NoneType"):
        compiled(lambda x: x.cos(), **options)(torch.ones(3))


class AnyName(dict[str, Any]):
    """The same function under every name."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __missing__(self, name: str) -> Any:
        return self.function


def test_a_target_without_symbols_gets_fixed_sizes(numpy_target: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.find("numpy"), "takes_symbols", False, raising=False)
    assert not Pipeline.build(parse_options(None, {"codegen.target": "numpy"})).takes_symbols
    assert Pipeline.build(parse_options(None, {})).takes_symbols


def test_its_code_is_a_part_of_keys(numpy_target: None) -> None:
    assert "stagefold_numpy_target=" in Pipeline.build(parse_options(None, {})).describe()


def test_a_name_that_nobody_registers() -> None:
    with pytest.raises(UnknownTarget, match=r"registers a target 'numpi'\n  fix: The targets are: cpp, .*triton"):
        compiled(lambda x: x + 1, **{"codegen.target": "numpi"})


def test_one_for_another_interface_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "old"\nversion = "1"\n'
        '[project.entry-points."stagefold.targets"]\nold = "old_target:TARGET"\n'
    )
    (tmp_path / "old_target.py").write_text(
        "from codegen.targets import Target\nclass Old(Target):\n    name, interface = 'old', 0\nTARGET = Old()\n"
    )
    with (
        installed(tmp_path, tmp_path / "installed"),
        pytest.raises(UnknownTarget, match="old_target:TARGET, registered as 'old', is a Old for the interface 0"),
    ):
        targets.find("old")


def test_ours_use_the_same_door() -> None:
    registered = {point.name: point.value for point in entry_points(group=targets.GROUP)}
    assert registered["cpp"] == "codegen.cpp.emit:CPP"
    assert registered["triton"] == "codegen.triton.unit:TRITON"
    assert targets.find("cpu", targets.DEVICES) is targets.find("cpp")
    assert targets.find("cuda", targets.DEVICES) is targets.find("triton")
