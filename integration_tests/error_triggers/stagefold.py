"""Arguments of `stagefold.compile` and of the command line."""

from __future__ import annotations

import torch

import stagefold
from stagefold.adapters.from_fx import from_fx
from stagefold.cli import main


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
    from_fx(traced, [torch.ones(1, 2)])


def SF008() -> None:
    stagefold.compile(lambda x: x * 2, backend=lambda graph, inputs: None)(torch.ones(3))
