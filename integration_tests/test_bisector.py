"""A fault planted into a stage is found: the slot, the pass, and the smallest document that shows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import bytecap
import codegen
import stagefold
from aotgrad import Joint
from codegen import Codegen
from loopir import LoopIR
from loopir.pipeline import KERNEL_PASSES
from stagefold.bisector import _parts, results_of
from stagefold.cli import main
from stagefold.excerpts import NotApart
from stagefold.options import Options
from stagefold.pipeline import Pipeline
from stagefold.reference import meaning
from stagewire import load, print_document, save
from stagewire.capture import Capture
from stagewire.codec import Document
from stagewire.graph import Graph
from stagewire.loop import Compute, Free, Kernel, Loop, LoopGraph, Statement
from stagewire.prim import Prim
from stagewire.program import Program
from stagewire.statements import map_statements
from stagewire.verify import verify


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.last(self.norm(F.gelu(self.first(x)))), -1)


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network()


X = torch.linspace(-2, 2, 40).reshape(5, 8).requires_grad_()


def maximum_for_sub(graph: LoopGraph) -> LoopGraph:
    def change(statement: Statement) -> Statement:
        wrong = isinstance(statement, Compute) and statement.op == "sub"
        return replace(statement, op="maximum") if wrong else statement

    steps = [map_statements(step, change) if isinstance(step, Kernel) else step for step in graph.steps]
    return replace(graph, steps=tuple(steps))


@pytest.fixture(params=[False, True], ids=["fixed sizes", "symbolic sizes"])
def dynamic(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_what_is_right_is_not_blamed(network: Network, dynamic: bool) -> None:
    assert stagefold.blame(network, X, dynamic=dynamic) is None


def test_a_decomposition_with_a_wrong_constant(network: Network, dynamic: bool) -> None:
    def wrong(p: Any, g: Any, x: Any, *, approximate: str = "none") -> Any:
        cdf = p.mul(p.add(p.erf(p.mul(x, math.sqrt(0.5))), 1.0), 0.5)
        pdf = p.mul(p.exp(p.mul(p.mul(x, x), -0.5)), 0.39)  # for 0.3989
        return p.mul(g, p.add(cdf, p.mul(x, pdf)))

    options = {"primops.decompositions": (("aten.gelu_backward.default", wrong),)}
    found = stagefold.blame(network, X, options=options, dynamic=dynamic)
    assert found is not None
    assert (found.slot, found.culprit, found.calls) == ("primops", None, ("aten.gelu_backward.default",))
    assert print_document(found.document).count("aten.") == 1
    assert "differs in" in found.difference


def test_a_pass_of_the_loops(network: Network, dynamic: bool) -> None:
    passes = (*KERNEL_PASSES[:2], maximum_for_sub, *KERNEL_PASSES[2:])
    found = stagefold.blame(network, X, options={"loopir.kernel_passes": passes}, dynamic=dynamic)
    assert found is not None
    assert (found.slot, found.culprit, found.calls) == ("loopir", "maximum_for_sub", ("prims.sub",))


def test_a_pass_that_raises(network: Network) -> None:
    def raises(graph: LoopGraph) -> LoopGraph:
        raise KeyError("no such buffer")

    passes = (*KERNEL_PASSES[:2], raises, *KERNEL_PASSES[2:])
    found = stagefold.blame(network, X, options={"loopir.kernel_passes": passes})
    assert found is not None
    assert found.slot == "loopir"
    assert found.culprit is not None
    assert found.culprit.endswith("raises")


def test_a_pass_that_breaks_a_constraint_is_to_blame_for_one_that_raises_on_it(network: Network) -> None:
    def frees_nothing(graph: LoopGraph) -> LoopGraph:
        return replace(graph, steps=(*graph.steps, Free("nowhere")))

    def looks_at_buffers(graph: LoopGraph) -> LoopGraph:
        types = {buffer.name: buffer.type for buffer in graph.buffers}
        assert [types[step.buffer] for step in graph.steps if isinstance(step, Free)]
        return graph

    passes = (*KERNEL_PASSES, frees_nothing, looks_at_buffers)
    found = stagefold.blame(network, X, options={"loopir.kernel_passes": passes})
    assert found is not None
    assert found.culprit is not None
    assert found.culprit.endswith("frees_nothing")


def test_passes_behind_the_wrong_one_are_not_tried_alone(network: Network) -> None:
    """One that takes only what the ones before it left raises elsewhere, which says nothing."""

    def sorts(graph: LoopGraph) -> LoopGraph:
        return replace(graph, buffers=tuple(sorted(graph.buffers, key=lambda buffer: buffer.name)))

    def takes_sorted(graph: LoopGraph) -> LoopGraph:
        if graph != sorts(graph):
            raise KeyError("not sorted")
        return graph

    passes = (*KERNEL_PASSES, sorts, maximum_for_sub, takes_sorted)
    found = stagefold.blame(network, X, options={"loopir.kernel_passes": passes})
    assert found is not None
    assert found.culprit == "maximum_for_sub"


def test_a_pass_over_the_joint_graph(network: Network) -> None:
    from aotgrad.passes import DEFAULT_PASSES

    def no_norm(joint: Joint) -> Joint:
        nodes = tuple(
            replace(node, target="aten.cos.default") if node.target == "aten.gelu.default" else node
            for node in joint.graph.nodes
        )
        return joint.with_graph(Graph(joint.graph.inputs, nodes, joint.graph.outputs))

    found = stagefold.blame(network, X, options={"aotgrad.passes": (*DEFAULT_PASSES[:3], no_norm, *DEFAULT_PASSES[3:])})
    assert found is not None
    assert found.slot == "aotgrad"
    assert found.culprit is not None
    assert found.culprit.endswith("no_norm")


def test_a_code_generator(network: Network, tmp_path: Path, dynamic: bool) -> None:
    def wrong(document: Loop) -> Program:
        return Codegen().run(replace(document, forward=maximum_for_sub(document.forward)))

    found = stagefold.blame(network, X, stages={"codegen": wrong}, dynamic=dynamic)
    assert found is not None
    assert found.slot == "codegen"
    assert found.culprit is None
    assert len(found.calls) == 1
    found.save(str(tmp_path))
    smallest = load(tmp_path / "loop.json")
    assert isinstance(smallest, Loop)
    assert len(smallest.forward.steps) == 1
    verify(smallest)


def test_a_stage_that_raises() -> None:
    def fails_on_exp(document: Prim) -> Loop:
        graph = document.joint or document.forward
        assert graph is not None
        if any(node.target == "prims.exp" for node in graph.nodes):
            raise KeyError("exp")
        return LoopIR().run(document)

    found = stagefold.blame(lambda x: (x + 1).sin().exp() * 2, torch.ones(3), stages={"loopir": fails_on_exp})
    assert found is not None
    assert found.calls == ("prims.exp",)
    assert "KeyError: 'exp'" in found.difference


def documents(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool) -> list[Document]:
    found: list[Document] = []

    class Backend:
        takes_symbols = True

        def __call__(self, capture: Capture, given: tuple[Any, ...]) -> Callable[..., Any]:
            found.append(capture)
            Pipeline.build(Options()).run(capture, observe=lambda event: found.append(event.document))
            return bytecap.executor(capture)

    bytecap.optimize(function, Backend(), fullgraph=True, dynamic=dynamic)(*inputs)
    return found


def made_of_sizes(x: torch.Tensor, w: torch.Tensor) -> Any:
    n = x.shape[0]
    filled = torch.full((n, n), 0.5) @ x
    cells = x.new_zeros(n + 1).index_put((torch.arange(n) // 2,), torch.ones(n))
    return torch.arange(n) * 2, filled[: n // 2].cumsum(0), torch.cat([x, x]).view(2, n, -1) * w, cells, x.sum() * n


@pytest.mark.parametrize("form", ["grad", "prim", "cut", "loop"])
def test_each_step_alone_is_a_document_of_symbolic_sizes(form: str) -> None:
    """Symbols that are the size of nothing that it is given are inputs of it."""
    inputs = (torch.randn(6, 4, requires_grad=True), torch.randn(4))
    names = ("capture", "grad", "prim", "cut", "loop", "program")
    document = documents(made_of_sizes, *inputs, dynamic=True)[names.index(form)]
    numbers = 0
    for part, values in _parts(document, inputs):
        for step in range(part.count):
            try:
                excerpt, operands = part.excerpt((step,))
            except NotApart:  # another step writes into the same buffer
                continue
            verify(excerpt)
            results = results_of(lambda: meaning(excerpt), [values[name] for name in operands])  # noqa: B023
            assert not any(isinstance(one, Exception) for one in results), results
            numbers += sum(one.role == "symbol" for one in excerpt.binding.inputs)
    assert numbers


def test_a_trace_with_symbolic_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"primops.decompositions": (("aten.arange.start_step", from_one), ("aten.arange.default", from_one))}
    program = stagefold.compile(made_of_sizes, dynamic=True, options={"trace_dir": str(tmp_path), **options})
    program(torch.randn(6, 4), torch.randn(4))
    (file,) = tmp_path.glob("*.capsule")
    assert main(["blame", str(file), "-o", str(tmp_path / "smallest")]) == 1
    assert "stage 'primops' in slot 'primops' on aten.arange.default: result 0" in capsys.readouterr().out
    smallest, inputs = load(tmp_path / "smallest" / "grad.json"), torch.load(tmp_path / "smallest" / "inputs.pt")
    verify(smallest)
    assert inputs == [6]
    assert stagefold.meaning(smallest)(*inputs)[0].tolist() == [0, 1, 2, 3, 4, 5]


def from_one(p: Any, end: Any, *_: Any, **__: Any) -> Any:
    """A wrong arange: it starts at one."""
    return p.iota(end, 1, 1, "int64")


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_document_means_the_same(dynamic: bool) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax((x * 1) @ w, -1)
        x.mul_(2)
        return F.gelu(y), y.t()

    x, w = torch.randn(4, 8), torch.randn(8, 5, requires_grad=True)
    before = x.clone()
    made = documents(program, x, w, dynamic=dynamic)
    assert len(made) == 6
    for document in made:
        given, weight = before.clone(), w.detach().clone().requires_grad_()
        results = stagefold.meaning(document)(given, weight)
        torch.testing.assert_close(given, before * 2)
        expected = program(before.clone(), w)
        torch.testing.assert_close(results, expected)
        (gradient,) = torch.autograd.grad(results[0].square().sum() + results[1].exp().sum(), weight)
        (wanted,) = torch.autograd.grad(expected[0].square().sum() + expected[1].exp().sum(), w)
        torch.testing.assert_close(gradient, wanted)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, _, _, cut, loop, _ = documents(lambda x: torch.softmax(x, -1), torch.ones(3, 4), dynamic=False)
    save(capture, tmp_path / "capture.json")
    torch.save([torch.ones(3, 4)], tmp_path / "inputs.pt")
    assert main(["blame", str(tmp_path / "capture.json"), str(tmp_path / "inputs.pt")]) == 0
    assert capsys.readouterr().out == "every document means the same\n"
    save(cut, tmp_path / "cut.json")
    arguments = ["run-stage", "loopir", str(tmp_path / "cut.json"), str(tmp_path / "some.json")]
    assert main([*arguments, "--stop-after", "inline_pointwise"]) == 0
    unfused, fused = load(tmp_path / "some.json"), loop
    assert isinstance(unfused, Loop)
    assert isinstance(fused, Loop)
    assert len(unfused.forward.steps) > len(fused.forward.steps)
    torch.testing.assert_close(stagefold.meaning(unfused)(torch.ones(3, 4)), stagefold.meaning(fused)(torch.ones(3, 4)))
    assert main([*arguments, "--stop-after", "no_such_pass"]) == 1
    assert "inline_pointwise:1" in capsys.readouterr().err
    assert main([*arguments, "--option", "loopir.numerics=eager"]) == 0
    assert main([*arguments, "--option", "loopir"]) == 1


def test_a_wrong_capture(network: Network) -> None:
    def forgets(call: stagefold.Call) -> stagefold.Captured:
        given = stagefold.Call(lambda x: call.function(x) * 2, call.args, call.kwargs)
        return stagefold.Captured(*stagefold.from_fx(make_fx(given.function)(*given.args), given.args))

    found = stagefold.blame(torch.sin, torch.ones(3), stages={"capture": forgets})
    assert found is not None
    assert (found.slot, found.stage.rpartition(".")[2]) == ("capture", "forgets")
    assert "torch.sin" in print_document(found.document) or "aten.sin" in print_document(found.document)
    (result,) = meaning(found.document)(*found.inputs)
    torch.testing.assert_close(result, torch.ones(3).sin() * 2)


def test_a_capture_that_fails() -> None:
    def fails(call: stagefold.Call) -> stagefold.Captured:
        raise KeyError("no such op")

    found = stagefold.blame(torch.sin, torch.ones(3), stages={"capture": fails})
    assert found is not None
    assert (found.slot, found.document) == ("capture", None)
    assert "KeyError: 'no such op', where there is to be no error" in str(found)


def test_a_model_that_changes_with_each_call_is_no_fault_of_the_capture() -> None:
    calls: list[int] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return x * len(calls)

    assert stagefold.blame(program, torch.ones(3)) is None


def test_a_wrong_loader(network: Network, tmp_path: Path) -> None:
    def off_by_one(unit: Any) -> Any:
        run = codegen.load(unit)
        return lambda *inputs: tuple(one + 1 for one in run(*inputs))

    found = stagefold.blame(network, X, stages={"load": off_by_one})
    assert found is not None
    assert (found.slot, found.stage.rpartition(".")[2]) == ("load", "off_by_one")
    assert isinstance(found.document, Program)
    found.save(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"program.json", "inputs.pt"}
    right = stagefold.blame(network, X, stages={"load": lambda unit: codegen.load(unit, executor="reference")})
    assert right is None


def test_the_model_and_its_arguments_stay_as_they_are() -> None:
    norm = nn.BatchNorm1d(4)
    x = torch.arange(12.0).reshape(3, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        return norm(x.mul_(2))

    before = x.clone(), norm.running_mean.clone()  # type: ignore[operator]
    assert stagefold.blame(nn.Sequential(norm), x) is None
    assert torch.equal(norm.running_mean, before[1])  # type: ignore[arg-type]
    assert stagefold.blame(program, x) is None
    assert torch.equal(x, before[0])
