"""Capsules: what a process compiled, in one file, and compiled again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import codegen
import stagefold
from loopir import LoopIR
from loopir.pipeline import PASSES
from stagefold import Capsule
from stagefold.capsule.contents import contents
from stagefold.capsule.inputs import described, inputs_of
from stagefold.capsule.replay import loader_of
from stagefold.capsule.settings import as_data, as_value
from stagefold.cli import main
from stagefold.errors import BadCapsule

FORMS = ["capture", "grad", "prim", "cut", "loop", "program"]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Capsule:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("capsule") / "small.capsule"
    return stagefold.record(Small(), torch.randn(3, 4), to=path, options={"numerics": "eager", "loopir.passes": PASSES})


def test_every_document_forward_and_backward(capsule: Capsule) -> None:
    (run,) = capsule.runs
    assert list(capsule.forms(run)) == FORMS
    assert capsule.document(run, "program").backward is not None  # type: ignore[union-attr]
    assert [step.name for step in run.steps] == ["aotgrad", "primops", "partition", "loopir", "codegen", "load"]
    assert {"fuse_nests", "EliminateDead"} <= {row.name for row in run.passes}
    assert {row.slot for row in run.stages} == {"aotgrad", "primops", "partition", "loopir", "codegen"}
    assert "softmax" in "".join(text for lines in run.lines.values() for text in lines.values())
    assert capsule.index.machine.torch == torch.__version__
    (event,) = capsule.events
    assert (event.kind, event.run) == ("captured", run.member)


def test_it_replays_to_the_same_documents(capsule: Capsule) -> None:
    made = list(stagefold.replay(capsule))
    assert [one.form for one in made] == FORMS[1:]
    assert all(one.is_same for one in made)
    other = {one.form: one.is_same for one in stagefold.replay(capsule, options={"numerics": "default"})}
    assert other["grad"]
    assert not other["prim"]
    assert [one.form for one in stagefold.replay(capsule, until="prim")] == ["grad", "prim"]


def test_in_another_process_with_other_settings(capsule: Capsule, tmp_path: Path) -> None:
    """What the recorded program had set does not have to be set again."""
    command = [sys.executable, "-m", "stagefold", "replay", str(capsule.path), "--run"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same") == 5
    assert "those of eager" in done.stdout


def test_the_command_line(capsule: Capsule, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(capsule.path)
    assert main(["show", path]) == 0
    assert "0000_Small" in capsys.readouterr().out
    assert main(["show", path, "--only", "Small/loop/backward"]) == 0
    shown = capsys.readouterr().out
    assert "backward {" in shown
    assert "forward {" not in shown
    assert main(["show", path, "--only", "0/loop", "-o", str(tmp_path / "loop.json")]) == 0
    assert main(["diff", path, str(tmp_path / "loop.json"), "--only", "loop"]) == 0
    assert capsys.readouterr().out == "the same\n"
    outputs = []
    for last in ("partition", "cut"):  # a slot, and the form that it makes
        assert main(["replay", path, "--until", last]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert [line.split()[1] for line in outputs[0].splitlines()] == ["grad", "prim", "cut"]
    assert main(["replay", path, "--until", "loopir", "--print-after", "inline_pointwise"]) == 0
    before = capsys.readouterr().out
    assert main(["replay", path, "--print-after", "KeepFloat32:9"]) == 1
    assert "no pass 'KeepFloat32:9' runs" in capsys.readouterr().err
    assert main(["replay", path, "--print-after", "fuse_nests:1"]) == 0
    assert before.count("kernel ") > capsys.readouterr().out.count("kernel ")
    assert main(["replay", path, "--option", "numerics=default"]) == 0, "a change was asked for"
    assert "was " in capsys.readouterr().out
    assert main(["blame", path]) == 0
    assert main(["show", path, "--only", "nothing"]) == 1
    assert "SF013" in capsys.readouterr().err


def exp_by_powers_of_two(p: Any, x: Any) -> Any:
    return p.exp2(p.mul(x, 1.4426950408889634))


def test_options_with_dicts_of_functions_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("installed_here")
    module.exp = exp_by_powers_of_two  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "installed_here", module)
    monkeypatch.setattr(exp_by_powers_of_two, "__module__", "installed_here")
    monkeypatch.setattr(exp_by_powers_of_two, "__qualname__", "exp")
    options = {"primops.decompositions": {"aten.exp.default": exp_by_powers_of_two}}
    capsule = stagefold.record(torch.exp, torch.ones(3), to=tmp_path / "run.capsule", options=options)
    assert all(one.is_same for one in stagefold.replay(capsule))
    assert "primops.decompositions={aten.exp.default: exp}" in contents(capsule)


def test_wrong_results_are_a_fault_whatever_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "run.capsule")
    stagefold.record(lambda x: x.sin(), torch.ones(3), to=tmp_path / "run.capsule")

    class Off:
        name, version, consumes, produces = "off", "1", "unit", "callable"

        def run(self, unit: Any, options: Any = None) -> Any:
            run = codegen.load(unit)
            return lambda *inputs: [one + 1 for one in run(*inputs)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stagefold.capsule.replay.resolve_stage", lambda slot, stage: Off())
        assert main(["replay", path, "--run", "--stage", "load=off"]) == 1
    assert "differs in 3 of 3 elements" in capsys.readouterr().out


def test_several_files_and_what_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("a.capsule", "b.capsule")]
    for path in paths:
        stagefold.record(torch.exp, torch.ones(3), to=path)
    assert main(["show", *map(str, paths)]) == 0
    assert capsys.readouterr().out.count("capture:") == 2
    assert main(["replay", str(tmp_path)]) == 1
    assert "is a directory\n  fix: Name a file, such as a.capsule, b.capsule." in capsys.readouterr().err
    assert main(["show", str(paths[0]), "--only", "0/lop"]) == 1
    assert "'lop' in --only '0/lop' is no form" in capsys.readouterr().err


def test_what_is_said_of_slots_that_do_not_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stagefold.record(torch.exp, torch.ones(3), to=tmp_path / "run.capsule")
    cut, out = str(tmp_path / "cut.json"), str(tmp_path / "out.json")
    assert main(["show", str(tmp_path / "run.capsule"), "--only", "cut", "-o", cut]) == 0
    for said in (["--stage", "primops=primops"], ["--option", "codegen.isa=native"]):
        assert main(["run-stage", "loopir", cut, out, *said]) == 1
        assert "would change nothing: loopir alone run" in capsys.readouterr().err
    assert main(["run-stage", "loopir", cut, out, "--option", "loopir.numerics=eager"]) == 0


SCRIPT = """
import torch, stagefold
f = stagefold.compile(lambda x: x.sin() + 1)
f(torch.ones(3))
f(torch.ones(4))
"""


def test_processes_do_not_overwrite_each_other(tmp_path: Path) -> None:
    environment = {**os.environ, "STAGEFOLD_TRACE": str(tmp_path / "trace")}
    running = [subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert subprocess.run([sys.executable, "-c", SCRIPT], env=environment).returncode == 0
    files = sorted((tmp_path / "trace").iterdir())
    assert len(files) == 3
    for file in files:
        assert file.suffix == ".capsule"
        capsule = Capsule(file)
        assert [run.name for run in capsule.runs] == ["<lambda>", "<lambda>"]
        assert "x.shape[0] was 3 and is 4" in str(capsule.events[1].reason)


def test_runs_are_chosen_by_number_or_name(tmp_path: Path) -> None:
    for function in (torch.sin, torch.cos):
        compiled = stagefold.compile(lambda x, f=function: f(x) + 1, options={"trace_dir": tmp_path})
        compiled(torch.ones(3))
        compiled(torch.ones(4))
    capsule = Capsule(*tmp_path.iterdir())
    assert len(capsule.runs) == 4
    assert [list(capsule.chosen(word)) for word in ("0", "0003")] == [[capsule.runs[0]], [capsule.runs[3]]]
    assert len(list(capsule.chosen("lambda"))) == len(list(capsule.chosen())) == 4


def test_what_ends_the_process_leaves_the_documents(tmp_path: Path) -> None:
    """A stage that fails, and machine code that ends the process: the documents so far stand in the file."""

    def fails(document: Any) -> Any:
        raise RuntimeError("not today")

    compiled = stagefold.compile(torch.exp, options={"trace_dir": tmp_path / "a"}, stages={"loopir": fails})
    with pytest.raises(RuntimeError, match="not today"):
        compiled(torch.ones(3))
    (run,) = Capsule(*(tmp_path / "a").iterdir()).runs
    assert run.error == "RuntimeError: not today"
    assert list(run.digests) == ["capture", "grad", "prim", "cut"]
    script = f"""
    import os, torch, stagefold
    from stagefold.backend import StagefoldBackend
    StagefoldBackend.load = lambda *given, **more: os._exit(3)
    stagefold.compile(torch.exp, options={{"trace_dir": {str(tmp_path / "b")!r}}})(torch.ones(3))
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)]).returncode == 3
    (run,) = Capsule(*(tmp_path / "b").iterdir()).runs
    assert list(run.digests) == FORMS


def test_breaks_and_plain_runs_are_told_and_still_warned(tmp_path: Path) -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + 1
        return y + 1 if y.sum() > 1 else y - 1

    stagefold.compile(branches, options={"trace_dir": tmp_path})(torch.ones(3))

    def generator(x: torch.Tensor) -> Any:
        yield locals()["x"] + 1

    with pytest.warns(UserWarning, match="runs plain"):
        next(stagefold.compile(generator, options={"trace_dir": tmp_path})(torch.ones(3)))
    stagefold.compile(torch.exp, options={"trace_dir": tmp_path})(torch.ones(3))
    kinds = [(event.kind, event.code) for event in Capsule(*tmp_path.iterdir()).events]
    assert ("broke", "BC004") in kinds
    assert any(kind == "refused" for kind, _ in kinds)


def layouts() -> list[Any]:
    x = torch.randn(6, 4)
    return [x, x.t(), x[:, 1:3], x[1:], torch.randn(1, 4).expand(3, 4), torch.empty(0, 3), torch.tensor(3.0), 7, 2.5,
            torch.arange(9).view(3, 3), torch.ones(3, dtype=torch.bool), torch.randn(3, dtype=torch.complex64),
            nn.Parameter(torch.randn(3).bfloat16())]  # fmt: skip


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_inputs_in_their_layouts(capsule: Capsule, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = layouts()
    rows, data = described(given, limit)
    monkeypatch.setattr(capsule, "bytes_of", lambda run, file: data)
    (run,) = capsule.runs
    found = inputs_of(capsule, msgspec.structs.replace(run, inputs=rows))
    for one, other in zip(given, found, strict=True):
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        for what in ("dtype", "shape", "requires_grad"):
            assert getattr(one, what) == getattr(other, what)
        assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())
        assert not limit or torch.equal(one, other)


def local_object() -> Any:
    def partitioner(joint: Any) -> Any: ...

    return partitioner


def test_options_as_data() -> None:
    values = [None, True, 3, 2.5, "a", (1, ("b",)), frozenset("ab"), Path("x"), os.path.join, PASSES, LoopIR]
    assert [as_value(as_data(value), "it") for value in values] == values
    with pytest.raises(BadCapsule, match="only the recorded program had"):
        as_value(as_data(local_object()), "the option 'partition.partitioner'")
    with pytest.raises(BadCapsule, match="cannot be had here"):
        as_value({"object": "no_such_module:f"}, "it")
    with pytest.raises(BadCapsule, match="no dataclass"):
        as_value({"object": "os:system", "fields": {"command": "false"}}, "it")


def test_a_stage_of_the_program_has_to_be_given_again(tmp_path: Path) -> None:
    def mine(document: Any) -> Any:
        return LoopIR().run(document)

    capsule = stagefold.record(torch.exp, torch.ones(3), to=tmp_path / "a.capsule", stages={"loopir": mine})
    with pytest.raises(BadCapsule, match=r"slot 'loopir' of 0000_.* had .*mine"):
        list(stagefold.replay(capsule))
    assert all(one.is_same for one in stagefold.replay(capsule, stages={"loopir": mine}))


def test_options_of_a_replaced_stage_are_dropped_where_it_has_none_such(tmp_path: Path) -> None:
    def mine(document: Any) -> Any:
        return LoopIR().run(document)

    options = {"loopir.passes": PASSES, "primops.keep": ("aten.exp.default",)}
    capsule = stagefold.record(torch.exp, torch.ones(3), to=tmp_path / "a.capsule", options=options)
    assert all(one.is_same for one in stagefold.replay(capsule, stages={"loopir": mine}))


def test_frozen_programs_are_two(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.softmax(self.weight, -1)

    with torch.no_grad():
        capsule = stagefold.record(Net(), torch.randn(3, 4), to=tmp_path / "a.capsule", options={"freeze": True})
    assert "program.2" in capsule.runs[0].digests
    assert [one.form for one in stagefold.replay(capsule) if one.is_same] == list(capsule.runs[0].digests)[1:]


def test_bad_files(tmp_path: Path, capsule: Capsule, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.capsule").write_text("no archive")
    assert main(["replay", str(tmp_path / "text.capsule")]) == 1
    assert "SF013" in capsys.readouterr().err
    whole = capsule.path.read_bytes()
    (tmp_path / "cut.capsule").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadCapsule, match="is no capsule"):
        Capsule(tmp_path / "cut.capsule")
    for content, told in (
        ('{"format": 99, "stagefold": "3.0.0"}', "has format 99"),
        ("{}", "does not decode"),
        (None, "has no member capsule.json"),
    ):
        with zipfile.ZipFile(tmp_path / "other.capsule", "w") as archive:
            archive.writestr("unrelated", "")
            if content is not None:
                archive.writestr("capsule.json", content)
        with pytest.raises(BadCapsule, match=told):
            Capsule(tmp_path / "other.capsule")
    with pytest.raises(BadCapsule, match="no document 'cutt'"):
        capsule.document(capsule.runs[0], "cutt")
    with pytest.raises(BadCapsule, match="has no run 'f'"):
        list(stagefold.replay(capsule, only="f"))


def test_an_empty_call_has_an_empty_capsule(tmp_path: Path) -> None:
    capsule = stagefold.record(lambda: 3, to=tmp_path / "a.capsule")
    assert capsule.runs == ()
    with pytest.raises(BadCapsule, match="nothing was compiled"):
        list(stagefold.replay(capsule))


def exponential(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def traced(call: stagefold.Call) -> stagefold.Captured:
    return stagefold.Captured(*stagefold.from_fx(torch.fx.symbolic_trace(call.function), call.args))


def step_by_step(unit: Any) -> Any:
    step_by_step.units.append(unit)
    return codegen.load(unit, executor="reference")


def twice(unit: Any) -> Any:
    return lambda *inputs: [2 * one for one in codegen.load(unit, executor="reference")(*inputs)]


def test_what_stood_in_the_slots_at_the_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A capsule names them; the recorded loader, or another one, runs the program that is made again."""
    step_by_step.units = []
    own = {"capture": traced, "load": step_by_step}
    capsule = stagefold.record(exponential, torch.ones(3), to=tmp_path / "a.capsule", stages=own)
    (run,) = capsule.runs
    found = {row.slot: (row.name, row.registered) for row in run.stages if row.slot in own}
    assert found == {"capture": ("traced", None), "load": ("step_by_step", None)}
    assert main(["show", str(capsule.path)]) == 0
    assert {"capture=traced", "load=step_by_step"} <= set(capsys.readouterr().out.split())
    assert all(one.is_same for one in stagefold.replay(capsule))
    assert main(["replay", str(capsule.path), "--run"]) == 1
    assert f"slot 'load' of {run.member} had 'step_by_step'" in capsys.readouterr().err
    known = {"mine": SimpleNamespace(load=lambda: step_by_step), "wrong": SimpleNamespace(load=lambda: twice)}
    monkeypatch.setattr("stagefold.pipeline.discover", lambda: known)
    before = len(step_by_step.units)
    assert main(["replay", str(capsule.path), "--run", "--stage", "load=mine"]) == 0
    assert len(step_by_step.units) == before + 1
    assert "those of eager" in capsys.readouterr().out
    main(["replay", str(capsule.path), "--run", "--stage", "load=wrong"])
    assert "those of eager" not in capsys.readouterr().out
    row = next(row for row in run.stages if row.slot == "load")
    registered = msgspec.structs.replace(run, stages=(msgspec.structs.replace(row, registered="mine"),))
    assert loader_of(registered).function is step_by_step  # type: ignore[union-attr]


def test_trace_directories_name_the_ends_of_each_program(tmp_path: Path) -> None:
    for stages in ({"capture": traced}, {"load": lambda unit: codegen.load(unit, executor="reference")}, {}):
        stagefold.compile(exponential, options={"trace_dir": tmp_path}, stages=stages)(torch.ones(3))
    runs = Capsule(*tmp_path.iterdir()).runs
    assert [{row.slot for row in run.stages} & {"capture", "load"} for run in runs] == [{"capture"}, {"load"}, set()]


FORKS = """
import os, sys, torch, stagefold
call = stagefold.compile(lambda x: x.sin() * 2)
call(torch.ones(3))
child = os.fork()
call(torch.ones(2, 2) if child else torch.ones(2, 2, 2))
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


RECORDED_FORKS = """
import os, sys, torch, stagefold
def halves(x):
    y = x.sin() * 2
    child = os.fork()
    y = y.reshape(1, 3) + 1
    if child:
        assert os.waitpid(child, 0)[1] == 0
    return y
stagefold.record(halves, torch.ones(3), to=sys.argv[1])
"""


def test_a_forked_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    """What was compiled before the fork is in the parent's file alone."""
    environment = {**os.environ, "STAGEFOLD_TRACE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FORKS], env=environment, capture_output=True, text=True, check=True)
    assert "Duplicate name" not in done.stderr
    assert sorted(len(Capsule(file).runs) for file in tmp_path.glob("*.capsule")) == [1, 2]


def test_so_does_one_that_is_forked_while_a_call_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "halves.capsule"
    subprocess.run([sys.executable, "-c", RECORDED_FORKS, str(file)], capture_output=True, check=True)
    (other,) = set(tmp_path.iterdir()) - {file}
    assert other.name.startswith("halves-")
    assert [run.name for run in Capsule(file).runs][:1] == ["halves"]
    assert len(Capsule(file).runs) == 1 + len(Capsule(other).runs) > 1
