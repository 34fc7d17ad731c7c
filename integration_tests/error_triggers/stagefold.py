"""Arguments of `stagefold.compile` and of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

import bytecap
import stagefold
from absint.errors import TypeRuleError
from loopir import LoopIR
from loopir.pipeline import KERNEL_PASSES
from stagefold.backend import StagefoldBackend
from stagefold.cli import main
from stagefold.options import parse_options
from stagewire.capture import Capture
from stagewire.grad import Grad
from stagewire.loop import LoopGraph
from stagewire.prim import Prim


def SF001() -> None:
    stagefold.compile(torch.relu, options={"loopir.passses": ()})


def SF002() -> None:
    stagefold.compile(torch.relu, backend="no_such_backend")


def SF003() -> None:
    stagefold.compile(torch.relu, stages={"fusion": "mine"})


def SF004() -> None:
    stagefold.compile(torch.relu, stages={"loopir": 3})


def SF005() -> None:
    stagefold.compile("my_model")


def SF006() -> None:
    main(["show", "absent.json"])


def SF007() -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Linear(2, 3))
    stagefold.from_fx(traced)


def SF008() -> None:
    stagefold.compile(lambda x: x * 2, backend=lambda graph, inputs: None)(torch.ones(3))


def SF010(folder: Path) -> None:
    def forgets_a_kernel(graph: LoopGraph) -> LoopGraph:
        return replace(graph, steps=graph.steps[:-1])

    options = {"loopir.kernel_passes": (*KERNEL_PASSES, forgets_a_kernel), "cache_dir": folder}
    stagefold.compile(torch.exp, options=options)(torch.ones(3))


def SF011() -> None:
    stagefold.compile(torch.exp, backend="inductor", stages={"loopir": LoopIR()})


def SF012() -> None:
    capture, held = stagefold.from_fx(torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.ones(2)])
    stagefold.compile_capture(capture, held)(torch.ones(3))


def SF013(folder: Path) -> None:
    (folder / "run.capsule").write_text("no archive")
    stagefold.Capsule(folder / "run.capsule")


def SF014() -> None:
    class Counts(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return torch.relu(x)

    stagefold.export(Counts(), (torch.ones(3),))


def SF015(folder: Path) -> None:
    (folder / "relu.artifact").write_text("no archive")
    stagefold.load(folder / "relu.artifact")


def SF016(folder: Path) -> None:
    stagefold.export(torch.relu, (torch.ones(3),), documents=False).save(folder / "relu.artifact")
    stagefold.load(folder / "relu.artifact")


def SF017() -> None:
    def root(x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return torch.sqrt(x)

    stagefold.export(root, (torch.ones(3),))(-torch.ones(3))


def SF009() -> None:
    captures = []

    def keep(capture: Capture, inputs: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
        captures.append(capture)
        return bytecap.executor(capture)

    def knows_sizes(document: Grad) -> Prim:
        raise TypeRuleError("a product of sizes that are not numbers")

    keep.takes_symbols = True
    bytecap.optimize(lambda x: x * 2, keep, dynamic=True)(torch.ones(3))
    StagefoldBackend(parse_options(None, None), {"primops": knows_sizes})(captures[0], ())
