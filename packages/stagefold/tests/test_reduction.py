"""The smallest document of which a condition still holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import stagefold
from stagefold import Capsule
from stagefold.cli import main
from stagefold.errors import CommandFault
from stagefold.reduction import command, reduce, step_count
from stagewire.codec import Document, encode, load
from stagewire.grad import Binding, BoundInput, Fresh
from stagewire.graph import Graph
from stagewire.parser import parse_graph
from stagewire.prim import Prim
from stagewire.printer import print_document
from stagewire.types import numel
from stagewire.verify import verify
from stagewire.vocabulary import vocabulary


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Capsule:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(x @ w)
        return (torch.softmax(y, -1) * y.sin()).cumsum(0) + torch.erf(y)

    w = torch.randn(4, 4, requires_grad=True)
    path = tmp_path_factory.mktemp("reduction") / "a.capsule"
    return stagefold.record(program, torch.randn(3, 4), w, to=path)


def calls(word: str) -> Callable[[object], bool]:
    return lambda document: word in print_document(document)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "word", "count"),
    [("capture", ".sin(", 1), ("grad", "aten.cumsum", 1), ("prim", "prims.erf", 1), ("cut", "prims.erf", 1),
     ("loop", "reduce max", 1)],
)  # fmt: skip
def test_one_step_is_left(capsule: Capsule, form: str, word: str, count: int) -> None:
    document = capsule.document(capsule.runs[0], form)
    found = reduce(document, calls(word))
    verify(found)
    assert word in print_document(found)
    assert step_count(found) == count < step_count(document)


def test_two_that_belong_together_stay(capsule: Capsule) -> None:
    document = capsule.document(capsule.runs[0], "prim")
    found = reduce(document, lambda one: calls("prims.exp")(one) and calls("prims.amax")(one))
    assert step_count(found) == 2


def test_symbolic_sizes_are_fixed_where_that_shows_it_too(tmp_path: Path) -> None:
    path = tmp_path / "a.capsule"
    capsule = stagefold.record(lambda x: torch.softmax(x, -1).exp(), torch.randn(3, 4), to=path, dynamic=True)
    document = capsule.document(capsule.runs[0], "loop")
    found = reduce(document, calls("exp"))
    assert not found.binding.symbols  # type: ignore[union-attr]
    verify(found)


@pytest.mark.parametrize("form", ["capture", "grad", "prim"])
def test_sizes_shrink_with_the_types_that_calls_give(capsule: Capsule, form: str) -> None:
    found = reduce(capsule.document(capsule.runs[0], form), calls("cumsum"))
    assert "f32[1, 1]" in print_document(found)
    assert not re.search(r"f32\[[^]]*[2-9]", print_document(found))
    (result,) = stagefold.meaning(found)(torch.ones(1, 1))
    assert result.shape == (1, 1)


def test_a_size_that_matters_stays(capsule: Capsule) -> None:
    found = reduce(capsule.document(capsule.runs[0], "prim"), calls("f32[3, 4] = prims.erf"))
    assert print_document(found).count("prims.") == 1
    verify(found)


def test_products_of_sizes_stay_products() -> None:
    graph = parse_graph("""
        input %x: f32[6, 35]
        %y: f32[210] = prims.reshape(%x, [210])
        %z: f32[210] = prims.exp(%y)
        return %z
    """)
    found = reduce(one_graph(graph), lambda d: "reshape" in str(d) and "exp" in str(d) and elements(d) >= 4)
    assert 4 <= elements(found) <= 9
    (result,) = stagefold.meaning(found)(torch.ones(found.binding.inputs[0].type.shape))  # type: ignore[union-attr]
    assert result.shape == (elements(found),)


def one_graph(graph: Graph) -> Prim:
    inputs = tuple(BoundInput(value.name, value.type) for value in graph.inputs)
    opset = vocabulary("prims").version  # type: ignore[union-attr]
    outputs = tuple(map(Fresh, range(len(graph.outputs))))
    return Prim(binding=Binding(inputs=inputs, outputs=outputs), forward=graph, opset=opset)


def elements(document: Document) -> int:
    return int(numel(document.binding.inputs[0].type.shape))  # type: ignore[union-attr]


def test_statements_of_a_kernel_that_do_not_matter_go(capsule: Capsule) -> None:
    document = capsule.document(capsule.runs[0], "loop")
    found = reduce(document, lambda one: all(map(print_document(one).count, ("erf(", "store"))))
    verify(found)
    (kernel,) = found.forward.steps  # type: ignore[union-attr]
    assert [statement.__class__.__name__ for section in kernel.sections for statement in section.statements] == [
        "Compute", "Store",
    ]  # fmt: skip
    assert not kernel.axes
    (result,) = stagefold.meaning(found)(*[torch.ones(one.type.shape) for one in found.binding.inputs])  # type: ignore[union-attr]
    assert result.numel() == 1


def test_arguments_become_plain(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (8,), eps=0.25) + x.sum(-1, keepdim=True)

    capsule = stagefold.record(program, torch.randn(6, 8), to=tmp_path / "a.capsule")
    document = capsule.document(capsule.runs[0], "capture")
    assert "eps=" in print_document(document)
    assert "eps=" not in print_document(reduce(document, calls("layer_norm")))
    document = capsule.document(capsule.runs[0], "grad")
    assert "layer_norm.default(%x, [8], None, None, 0.25)" in print_document(document)
    assert "layer_norm.default(%x, [1], None, None, 0.0)" in print_document(reduce(document, calls("layer_norm")))
    assert "sum.dim_IntList(%x, [-1], True)" in print_document(document)
    kept = print_document(reduce(document, calls("aten.sum")))
    assert "%sum: f32[1, 1] = aten.sum.dim_IntList(%x, [0], True)" in kept, "its type needs the argument"


def test_no_condition_is_asked_twice_of_one_document(capsule: Capsule) -> None:
    asked: list[bytes] = []

    def keep(document: Document) -> bool:
        asked.append(encode(document))
        return "prims.exp" in print_document(document)

    reduce(capsule.document(capsule.runs[0], "prim"), keep)
    assert len(set(asked[1:])) == len(asked[1:])


def test_a_condition_that_never_held_is_refused(capsule: Capsule) -> None:
    with pytest.raises(CommandFault, match="does not hold of the document as it is"):
        reduce(capsule.document(capsule.runs[0], "prim"), lambda document: False)


def test_commands(capsule: Capsule, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep, out = "grep -q prims.erf", tmp_path / "small.json"
    assert main(["reduce", str(capsule.path), "--only", "prim", "--keep", keep, "-o", str(out)]) == 0
    assert step_count(load(out)) == 1
    assert "1 of them left" in capsys.readouterr().out
    assert main(["reduce", str(out), "--keep", "grep -q erf {}"]) == 0
    assert "prims.erf" in capsys.readouterr().out
    assert main(["reduce", str(out), "--keep", "false"]) == 1
    assert "SF006" in capsys.readouterr().err
    slow = command(f"{sys.executable} -c 'import time; time.sleep(20)'", timeout=0.2)
    assert not slow(load(out))


def test_a_command_that_is_none_is_told(capsule: Capsule) -> None:
    with pytest.raises(CommandFault, match=r"no_such_file\.sh' cannot be run: .*no_such_file"):
        reduce(capsule.document(capsule.runs[0], "prim"), command("./no_such_file.sh"))
