"""Artifacts: a model computes the same in a process that has neither compiler nor capture nor the model's code."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.export import Dim
from torch.utils import _pytree

import stagefold
from stagefold.artifact.file_format import INDEX, Header
from stagefold.cli import main
from stagefold.errors import (
    BadArtifact,
    CannotExport,
    CheckFailed,
    CompiledAgain,
    NoEffect,
    NotRunnable,
    OtherInputs,
    RunsPlain,
)

Pair = collections.namedtuple("Pair", "first second")


def loaded(model: Callable[..., Any], folder: Path, *args: Any, **settings: Any) -> stagefold.Artifact:
    """The model, exported, written, and read again."""
    stagefold.export(model, args, **settings).save(folder / "model.artifact")
    return stagefold.load(folder / "model.artifact", trust=True)


def assert_same(found: Any, expected: Any) -> None:
    """Equal trees, and equal leaves: tensors to rounding, others with their types."""
    leaves, tree = _pytree.tree_flatten(found)
    wanted, shape = _pytree.tree_flatten(expected)
    assert str(tree) == str(shape)
    for have, want in zip(leaves, wanted, strict=True):
        if isinstance(want, torch.Tensor):
            assert (have.dtype, have.stride()) == (want.dtype, want.stride())
            torch.testing.assert_close(have, want)
        else:
            assert (type(have), have) == (type(want), want)


# ---- arguments and results


def containers(x: torch.Tensor) -> Any:
    return {"a": x * 2, "b": (x.sum(), [x.shape[0], x.shape[0] / 2, None, "text", True]), "c": Pair(x + 1, x), 3: x[0]}


def test_results_keep_their_containers_and_numbers_of_sizes(tmp_path: Path) -> None:
    artifact = loaded(containers, tmp_path, torch.ones(5, 4), dynamic_shapes=({0: "n"},))
    for rows in (5, 7):
        x = torch.randn(rows, 4)
        found = artifact(x)
        assert_same(found, containers(x))
        assert found["c"].second is x
        assert found[3]._base is None or found[3]._base is x


def test_keywords_come_in_any_order_and_values_are_compared(tmp_path: Path) -> None:
    def chosen(x: torch.Tensor, *, y: dict[str, torch.Tensor], flip: bool = False) -> torch.Tensor:
        return x - y["a"] if flip else y["a"] - x

    x, y = torch.randn(3), {"a": torch.randn(3)}
    artifact = loaded(chosen, tmp_path, x, kwargs={"y": y, "flip": True})
    assert_same(artifact(x, flip=True, y=y), x - y["a"])
    with pytest.raises(OtherInputs, match=r"kwargs\['flip'\] is False, and was True"):
        artifact(x, flip=False, y=y)
    with pytest.raises(OtherInputs, match=r"chosen takes args\[0\], kwargs\['y'\]\['a'\], kwargs\['flip'\]"):
        artifact(x, y=y)


def test_run_takes_and_gives_leaves(tmp_path: Path) -> None:
    artifact = loaded(lambda pair: {"sum": pair[0] + pair[1]}, tmp_path, (torch.ones(2), torch.ones(2)))
    (found,) = artifact.run([torch.ones(2), torch.zeros(2)])
    assert_same(found, torch.ones(2))
    with pytest.raises(OtherInputs, match="takes 2 leaves, and 1 are given"):
        artifact.run([torch.ones(2)])


def test_zeros_of_both_signs_and_nan_are_values(tmp_path: Path) -> None:
    artifact = loaded(lambda x, y: x * y, tmp_path, torch.ones(2), float("nan"))
    assert artifact(torch.ones(2), float("nan")).isnan().all()
    artifact = loaded(lambda x, y: x * y, tmp_path, torch.ones(2), 0.0)
    artifact(torch.ones(2), 0.0)
    for other in (-0.0, 0, False):
        with pytest.raises(OtherInputs, match="it is a part of what was compiled"):
            artifact(torch.ones(2), other)


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(2.0),
        torch.randn(0, 3),
        torch.randn(1, 1),
        torch.randn(4, 6).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(5).bfloat16(),
        torch.arange(5),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.complex64),
        torch.tensor([float("nan"), float("inf"), -0.0]),
    ],
    ids=lambda x: f"{x.dtype} {tuple(x.shape)} {x.stride()}",
)
def test_odd_tensors(x: torch.Tensor, tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> Any:
        return x * 2, x.sum(), x.reshape(-1)

    found = loaded(program, tmp_path, x)(x)
    for have, want in zip(found, program(x), strict=True):
        torch.testing.assert_close(have, want, equal_nan=True)


def test_arguments_that_were_one_tensor_may_be_two(tmp_path: Path) -> None:
    x = torch.randn(3)
    artifact = loaded(torch.add, tmp_path, x, x)
    assert_same(artifact(x, torch.ones(3)), x + 1)


def test_writes_and_aliases_of_arguments(tmp_path: Path) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(y)
        y[0] = 7
        return x, y[1:]

    artifact = loaded(program, tmp_path, torch.ones(3), torch.ones(3))
    x, y = torch.ones(3), torch.ones(3)
    first, second = artifact(x, y)
    assert first is x
    assert second._base is y
    assert_same((x, y), (torch.full((3,), 2.0), torch.tensor([7.0, 1.0, 1.0])))
    one, same = torch.ones(3), torch.ones(3)
    with pytest.warns(RunsPlain, match="share memory"):
        artifact(one, one)
    program(same, same)
    assert_same(one, same)


# ---- what the model holds


class Holding(nn.Module):
    """Tied parameters, a buffer and a window on it, a transposed one, an empty one, and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.tied = self.weight
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("tail", self.total[1:])
        self.register_buffer("turned", torch.randn(3, 2).t())
        self.register_buffer("none", torch.empty(0, dtype=torch.int64))
        self.plain = torch.arange(3)

    def forward(self, x: torch.Tensor) -> Any:
        self.total.add_(x)
        return x * self.weight + self.tied + self.plain, self.tail * 1, self.turned @ x, self.weight, self.none.sum()


@pytest.mark.filterwarnings("ignore::stagefold.errors.RunsPlain")
def test_tensors_of_the_model_keep_their_memory(tmp_path: Path) -> None:
    model = Holding()
    with torch.no_grad():
        artifact = loaded(model, tmp_path, torch.ones(3))
        for _ in range(2):
            x = torch.randn(3)
            assert_same(artifact(x), model(x))
    assert set(artifact.state) == {"weight", "total", "tail", "turned", "none", "plain"} - {"plain"} | {
        name for name in artifact.state if "plain" in name
    }
    assert artifact(torch.ones(3))[3] is artifact.state["weight"]
    assert_same(artifact.state["tail"], artifact.state["total"][1:])


def test_exporting_runs_nothing_and_changes_nothing() -> None:
    model = nn.BatchNorm1d(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(4, 3)
    stagefold.export(model, (x,), dynamic_shapes=({0: "n"},), targets=())
    assert_same(model.state_dict(), collections.OrderedDict(before))
    assert not vars(x)


def test_weights_beside(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    artifact = stagefold.export(model, (x,))
    artifact.save(tmp_path / "model.artifact", weights=tmp_path / "model.safetensors")
    with pytest.raises(BadArtifact, match="lie beside it"):
        stagefold.load(tmp_path / "model.artifact", trust=True)
    found = stagefold.load(tmp_path / "model.artifact", trust=True, weights=tmp_path / "model.safetensors")
    assert_same(found(x), model(x).detach())
    stagefold.export(nn.Linear(4, 2), (torch.randn(1, 4),), targets=()).save(
        tmp_path / "other.artifact", weights=tmp_path / "other.safetensors"
    )
    with pytest.raises(BadArtifact, match=r"weight is f32\[2, 4\].* has 6 elements"):
        stagefold.load(tmp_path / "other.artifact", trust=True, weights=tmp_path / "model.safetensors")
    with pytest.raises(BadArtifact, match="no safetensors file"):
        stagefold.load(tmp_path / "model.artifact", trust=True, weights=tmp_path / "model.artifact")


# ---- sizes


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + y, -1)


@pytest.mark.parametrize(
    "shapes",
    [
        ({0: "n"}, {0: "n"}),
        {"x": {0: Dim("n", min=1, max=50)}, "y": {0: Dim("n", min=1, max=50)}},
        {"x": (Dim.AUTO, None), "y": [Dim.AUTO, Dim.STATIC]},
        {"x": {0: Dim.DYNAMIC, 1: 4}, "y": {-2: Dim.AUTO}},
    ],
    ids=["names", "dims", "hints", "mixed"],
)
def test_forms_of_dynamic_shapes(shapes: Any, tmp_path: Path) -> None:
    artifact = loaded(added, tmp_path, torch.randn(5, 4), torch.randn(5, 4), dynamic_shapes=shapes)
    for rows in (2, 5, 9):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        assert_same(artifact(x, y), added(x, y))
    with pytest.raises(OtherInputs, match=r"args\[[01]\]"):
        artifact(torch.randn(3, 4), torch.randn(6, 4))
    with pytest.raises(OtherInputs, match=r"args\[0\] has size 5 in dimension 1, where it needs 4"):
        artifact(torch.randn(3, 5), torch.randn(3, 5))


def test_ranges_rules_and_computed_sizes(tmp_path: Path) -> None:
    n = Dim("n", min=2, max=20)
    artifact = loaded(
        lambda x, y: x.sum() + y.view(2, -1).sum(),
        tmp_path,
        torch.randn(4),
        torch.randn(8),
        dynamic_shapes=({0: n}, {0: 2 * n}),
    )
    artifact(torch.randn(7), torch.randn(14))
    with pytest.raises(OtherInputs, match=r"args\[0\].size\(0\) is 21, and was exported for 2 to 20"):
        artifact(torch.randn(21), torch.randn(42))
    with pytest.raises(OtherInputs, match=r"needs args\[1\].size\(0\) == 2\*args\[0\].size\(0\): .*is 7, .*is 12"):
        artifact(torch.randn(7), torch.randn(12))


def test_one_row_is_served_where_the_program_allows_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1))
    artifact = loaded(model, tmp_path, torch.randn(3, 4), dynamic_shapes=({0: range(1, 100)},))
    for rows in (1, 2, 50):
        x = torch.randn(rows, 4)
        assert_same(artifact(x), model(x).detach())


def test_examples_of_one_row_leave_the_size_open(tmp_path: Path) -> None:
    """torch fixes sizes of 1; the arguments of an export are examples, of which nobody reads the elements."""
    program = lambda x, y: (torch.nn.functional.gelu(x) @ y.t(), x.shape[0])  # noqa: E731
    x, y = torch.randn(1, 4), torch.randn(1, 4)
    for shapes in (({0: "n"}, {0: "m"}), ({0: range(1, 9)}, {0: Dim("k", min=1)}), ({0: "n", 1: None}, {0: "n"})):
        artifact = loaded(program, tmp_path, x, y, dynamic_shapes=shapes)
        for rows, others in ((1, 1), (4, 4)) if shapes[1] == {0: "n"} else ((1, 1), (3, 1), (1, 6), (4, 5)):
            given = torch.randn(rows, 4), torch.randn(others, 4)
            assert_same(artifact(*given), program(*given))
    images = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    model = nn.Conv2d(3, 4, 3, padding=1)
    artifact = loaded(model, tmp_path, images, dynamic_shapes=({0: "batch"},))
    given = torch.randn(5, 3, 8, 8).to(memory_format=torch.channels_last)
    assert_same(artifact(given), model(given).detach())
    sparse = torch.eye(3).to_sparse()  # has no memory of its own
    artifact = stagefold.export(lambda s, y: y * 2, (sparse, x), dynamic_shapes=(None, {0: "n"}))
    assert_same(artifact(sparse, torch.ones(3, 4)), torch.full((3, 4), 2.0))
    with pytest.raises(CannotExport, match=r"fixes args\[0\].size\(0\) at 1"):  # both would have to be made anew
        stagefold.export(program, (x, x.view(1, 4)), dynamic_shapes=({0: "n"}, {0: "m"}))


@pytest.mark.parametrize(
    ("program", "shapes", "says"),
    [
        (lambda x: x + x.t(), ({0: "a", 1: "b"},), r"needs args\[0\].size\(0\) == args\[0\].size\(1\)"),
        (
            lambda x: x * 2 if x.shape[0] % 3 == 0 else x,
            ({0: range(2, 10)},),
            r"needs \(args\[0\].size\(0\)\)%\(3\) == 0",
        ),
        (
            lambda x: x + torch.ones(3, 3),
            ({0: "a"},),
            r"args\[0\].size\(0\) was left open, and this line needs .* == 3",
        ),
        (lambda x: x * 2, ({5: "a"},), "names dimension 5 of x, which has 2"),
        (lambda x: x * 2, ({0: 4},), "has 4 for dimension 0 of x, which is 3"),
        (lambda x: x * 2, ({0: 1.5},), "has 1.5 for dimension 0 of x, which is no size"),
        (lambda x: x * 2, {"y": {0: "a"}}, "names 'y'; the arguments are x"),
        (lambda x: x * 2, ({0: "a"}, None), "has 2 entries, and the model 1 arguments"),
        (lambda x: x * 2, ({0: 2 * Dim("k")},), "no size is 'k'"),
    ],
)
def test_promises_that_cannot_be_kept(program: Any, shapes: Any, says: str) -> None:
    with pytest.raises(CannotExport, match=says):
        stagefold.export(program, (torch.randn(3, 3),), dynamic_shapes=shapes, targets=())


def test_other_tensors_are_refused_by_name(tmp_path: Path) -> None:
    artifact = loaded(lambda x: x * 2, tmp_path, torch.randn(3, 4), dynamic_shapes=({0: "n"},))
    for given, says in (
        (torch.ones(3, 4).double(), r"args\[0\] is torch.float64 on cpu, and was torch.float32 on cpu"),
        (torch.ones(3), r"args\[0\] has 1 dimensions, and had 2"),
        (torch.ones(4, 3).t(), r"args\[0\] has stride 1 in dimension 0, and had 4"),
        ([1.0], "in the same containers"),
        (1.0, r"args\[0\] is a float, and was a tensor"),
        (torch.ones(3, 4, requires_grad=True), r"args\[0\] requires gradients, for which it was not exported"),
    ):
        with pytest.raises(OtherInputs, match=says):
            artifact(given)


# ---- what has no form


class Rebinding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + x
        return x * 2


def test_models_that_write_objects_are_refused() -> None:
    with pytest.raises(CannotExport, match=r"writes model\._buffers"):
        stagefold.export(Rebinding(), (torch.ones(2),))
    with pytest.raises(CannotExport, match="no operation on tensors"):
        stagefold.export(lambda x: x, (torch.ones(2),))
    with pytest.raises(CannotExport, match=r"has .* for x, which is a slice"):
        stagefold.export(lambda x: x, (slice(torch.ones(2)),), dynamic_shapes=[{0: "n"}])


class Box:
    """No container that torch knows."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Cache:
    """A container that torch is told of, made again of nested data (as key-value caches of transformers are)."""

    def __init__(self, keys: list[torch.Tensor], name: Any) -> None:
        self.keys, self.name = keys, name


def test_containers_that_torch_is_told_of(tmp_path: Path) -> None:
    _pytree.register_pytree_node(
        Cache, lambda one: (one.keys, [["keys", ("a", 1)], one.name]), lambda keys, told: Cache(list(keys), told)
    )
    try:
        program = lambda cache: Cache([key * 2 for key in cache.keys], None)  # noqa: E731
        given = Cache([torch.ones(2), torch.zeros(3)], 2.5)
        found = loaded(program, tmp_path, given)(given)
        assert type(found) is Cache
        assert found.name == [["keys", ("a", 1)], None]
        assert [key.tolist() for key in found.keys] == [[2.0, 2.0], [0.0, 0.0, 0.0]]
        with pytest.raises(OtherInputs, match="in the same containers"):
            loaded(program, tmp_path, given)(Cache(given.keys, 3.5))
        longer = Cache([torch.ones(5), torch.ones(3)], 2.5)
        assert len(loaded(program, tmp_path, given, dynamic_shapes=([{0: "n"}, None],))(longer).keys[0]) == 5
        with pytest.raises(CannotExport, match="for cache, which is a list"):
            stagefold.export(program, (given,), dynamic_shapes=([{0: "n"}],))
    finally:
        _pytree.SUPPORTED_NODES.pop(Cache)


def test_objects_are_refused_by_name() -> None:
    with pytest.raises(CannotExport, match=r"result\['box'\]\[1\] is a Box, not a tensor, a literal or a container"):
        stagefold.export(lambda x: {"y": x + 1, "box": (x, Box(x * 2))}, (torch.ones(2),))
    with pytest.raises(CannotExport, match=r"args\[0\] is a Box, not a tensor"):
        stagefold.export(lambda box: box.inside * 2 + torch.ones(2), (Box(2.0),))


def test_calls_for_their_effect_alone_are_left_out_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    def talks(x: torch.Tensor) -> torch.Tensor:
        print("hello")
        return x * 2

    with pytest.warns(NoEffect, match="does not call print"):
        artifact = stagefold.export(talks, (torch.ones(2),))
    capsys.readouterr()
    assert_same(artifact(torch.ones(2)), torch.full((2,), 2.0))
    assert capsys.readouterr().out == ""


def test_what_is_taken_for_true_of_the_data_is_checked(tmp_path: Path) -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return x.sqrt()

    artifact = loaded(positive, tmp_path, torch.ones(2))
    assert_same(artifact(torch.ones(2)), torch.ones(2))
    with pytest.raises(CheckFailed):
        artifact(-torch.ones(2))


# ---- training


def test_training_an_artifact_is_training_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))
    artifact = loaded(model, tmp_path, torch.randn(5, 4), gradients=True, dynamic_shapes=({0: range(2, 100)},))
    pairs = [(one, torch.optim.SGD(one.parameters(), 0.1)) for one in (model, artifact)]
    for rows in (5, 6, 9):
        x = torch.randn(rows, 4)
        losses = []
        for call, optimizer in pairs:
            optimizer.zero_grad()
            losses.append(call(x).square().mean())
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(*losses)
    trained = model.state_dict()
    for name, value in artifact.state.items():
        torch.testing.assert_close(value.detach(), trained[name])
    artifact.save(tmp_path / "trained.artifact")
    again = stagefold.load(tmp_path / "trained.artifact", trust=True)
    model(x)
    torch.testing.assert_close(again(x), artifact(x))


def test_autocast_of_the_caller_does_not_reach_in(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    artifact = loaded(model, tmp_path, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert artifact(x).dtype == torch.float32
    assert_same(artifact(x), model(x).detach())


# ---- other processes and machines

LOADER = """
import os, sys
sys.modules.update(bytecap=None, loopir=None, primops=None)
import torch, stagefold
artifact = stagefold.load(sys.argv[1], trust=True)
x = torch.arange(12.0).reshape(3, 4)
torch.save(artifact(x), sys.argv[2])
assert not [name for name in sys.modules if name.startswith(("torch._dynamo", "aotgrad.tracer", "codegen.cpp.emit"))]
"""


@pytest.mark.parametrize("target", ["native", "x86-64-v2"])
def test_a_process_without_compiler_and_capture(target: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
    artifact = stagefold.export(model, (torch.randn(2, 4),), dynamic_shapes=({0: "n"},), targets=[target])
    artifact.save(tmp_path / "model.artifact")
    bare = {**os.environ, "PATH": "", "CXX": "", "STAGEFOLD_CACHE_DIR": str(tmp_path / "none")}
    command = [sys.executable, "-W", "error", "-c", LOADER, tmp_path / "model.artifact", tmp_path / "found"]
    done = subprocess.run(command, env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "none").exists()
    expected = model(torch.arange(12.0).reshape(3, 4)).detach()
    torch.testing.assert_close(torch.load(tmp_path / "found"), expected)


def changed(source: Path, to: Path, **fields: Any) -> Path:
    """The artifact with another index."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(to, "w") as other:
        for name in archive.namelist():
            data = archive.read(name)
            if name == INDEX:
                data = msgspec.json.encode(replace(msgspec.json.decode(data, type=Header), **fields))
            other.writestr(name, data)
    return to


@pytest.fixture(scope="module")
def relu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "relu.artifact"
    stagefold.export(nn.ReLU(), (torch.ones(2, 3),), dynamic_shapes=({0: "n"},)).save(path)
    return path


def test_files_of_strangers_are_compiled_from_their_documents(relu: Path) -> None:
    with pytest.warns(CompiledAgain, match="nobody said to trust its machine code"):
        artifact = stagefold.load(relu)
    assert_same(artifact(-torch.ones(5, 3)), torch.zeros(5, 3))
    with pytest.raises(NotRunnable, match="nobody said to trust") as raised:
        stagefold.load(relu, recompile=False)
    assert "trust=True" in raised.value.fix


def test_neither_machine_code_nor_sources_of_strangers_are_read(relu: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile"
    with zipfile.ZipFile(relu) as archive, zipfile.ZipFile(hostile, "w") as other:
        for name in archive.namelist():
            is_code = name.endswith((".so", ".program"))
            other.writestr(name, b"would end the process" if is_code else archive.read(name))
    with pytest.warns(CompiledAgain):
        assert_same(stagefold.load(hostile)(-torch.ones(5, 3)), torch.zeros(5, 3))
    with pytest.raises(stagefold.StageError, match="SW001"):
        stagefold.load(hostile, trust=True)


def test_another_torch_or_processor_is_refused_or_compiled_again(relu: Path, tmp_path: Path) -> None:
    header = stagefold.load(relu, trust=True).header
    older = changed(relu, tmp_path / "older", torch="2.0.0")
    with pytest.raises(NotRunnable, match=r"exported for torch 2\.0\.0, and this is"):
        stagefold.load(older, trust=True)
    with pytest.warns(CompiledAgain, match="exported for torch 2.0.0"):
        assert_same(stagefold.load(older, trust=True, recompile=True)(torch.ones(4, 3)), torch.ones(4, 3))
    other = changed(relu, tmp_path / "other", codes=(replace(header.codes[0], processor="other"),))
    with pytest.raises(NotRunnable, match="native: it was made for another kind of processor"):
        stagefold.load(other, trust=True)
    bare = tmp_path / "bare"
    stagefold.export(nn.ReLU(), (torch.ones(2),), documents=False).save(bare)
    assert_same(stagefold.load(bare, trust=True)(torch.ones(2)), torch.ones(2))
    with pytest.raises(NotRunnable, match="nor has it documents"):
        stagefold.load(bare)
    with pytest.raises(NotRunnable, match="it has no machine code"):
        stagefold.load(changed(relu, tmp_path / "none", codes=()), trust=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": (7,)},
        {"inputs": (-1,)},
        {"leaves": ()},
        {"inputs": ()},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::stagefold.errors.CompiledAgain")
def test_an_index_that_lies_is_refused(fields: dict[str, Any], relu: Path, tmp_path: Path) -> None:
    with pytest.raises(stagefold.StageError):
        stagefold.load(changed(relu, tmp_path / "lying", **fields))(torch.ones(2, 3))


@pytest.mark.parametrize("size", [0, 30, -30])
def test_files_that_are_cut_are_refused(size: int, relu: Path, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(relu.read_bytes()[:size])
    with pytest.raises(BadArtifact):
        stagefold.load(tmp_path / "cut", trust=True)


def test_a_class_that_is_not_imported_is_a_dict(tmp_path: Path) -> None:
    script = """
        import sys, torch, stagefold
        result = stagefold.load(sys.argv[1], trust=True)(torch.ones(2))
        print(type(result).__name__, list(result), result["pair"]._fields)
    """
    (tmp_path / "outputs.py").write_text(
        textwrap.dedent("""
        import collections, torch
        class Output(dict):
            pass
        Pair = collections.namedtuple("Pair", "first second")
        torch.utils._pytree.register_pytree_node(
            Output, lambda one: (list(one.values()), list(one)), lambda values, names: Output(zip(names, values)))
        def model(x):
            return Output(pair=Pair(x * 2, x), last=x + 1)
    """)
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import outputs  # type: ignore[import-not-found]

        artifact = loaded(outputs.model, tmp_path, torch.ones(2))
        assert type(artifact(torch.ones(2))) is outputs.Output
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("outputs", None)
    command = [sys.executable, "-c", textwrap.dedent(script), tmp_path / "model.artifact"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.stdout == "dict ['pair', 'last'] ('first', 'second')\n", done.stderr


def test_frozen_weights_are_folded_where_it_is_loaded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(2, 3, 10, 10)
    with torch.no_grad():
        artifact = loaded(model, tmp_path, x, options={"freeze": True})
        torch.testing.assert_close(artifact(x), model(x), rtol=1e-4, atol=1e-4)


# ---- the command line


def test_show_lists_what_is_inside(relu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(relu)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("relu.artifact: ReLU, forward, by stagefold ")
    assert "  args[0]: f32[s0, 3]" in lines
    assert "  s0 = args[0].size(0), 1 to any size" in lines
    assert lines[-1] == "  documents: capture.json, main.program"
    assert main(["show", str(relu), "--only", "capture"]) == 0
    assert capsys.readouterr().out.startswith("capture 1 {")
    assert main(["show", str(relu), "--only", "loop"]) == 1
    assert "has no document 'loop'" in capsys.readouterr().err
