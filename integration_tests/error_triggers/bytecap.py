"""Why code is not captured. Such code runs plain, and the error says why; under `fullgraph=True` it is raised.

BC005 and BC009 are no faults of the program: they are told to `bytecap.optimize(on_event=...)` alone. BC016 ends graphs
only where that is possible: under `fullgraph=True` each number is captured anew.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import bytecap
import stagefold
from absint import AbstractTensor, contiguous
from absint.symbolic import make_size
from bytecap.driver.executor import interpret
from bytecap.evaluator.tracer import new_tracer
from bytecap.guards import compile_guards
from bytecap.nodes.call_arguments import refuse_sizes
from stagewire.capture import Equals, Local
from stagewire.errors import StageError
from stagewire.graph import Ref
from stagewire.parser import parse_document

X = torch.ones(3)


def capture(function: Callable[..., Any], *arguments: Any) -> None:
    """Call `function` compiled whole: what ends the capture is raised."""
    stagefold.compile(function, backend="eager", fullgraph=True)(*arguments)


def reported(function: Callable[..., Any], *arguments: Any) -> StageError:
    """Call `function` compiled, and what that reports."""
    events: list[Any] = []
    call = bytecap.optimize(function, lambda graph, inputs: bytecap.executor(graph), on_event=events.append)
    with contextlib.suppress(ValueError):
        call(*arguments)
    return events[-1].error


def BC000() -> None:
    scale = [2]

    def changes_what_it_compiles(graph: Any, inputs: Any) -> Any:
        scale[0] += 1
        return bytecap.executor(graph)

    bytecap.optimize(lambda x: x * scale[0], changes_what_it_compiles, fullgraph=True)(X)


def BC001() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        try:
            raise ValueError
        except* ValueError:
            x = x * 2
        return x

    capture(forward, X)


def BC002() -> None:
    capture(lambda x: x * time.time(), X)


def BC003() -> None:
    class Length(torch.Tensor):
        def mul(self, other: object) -> torch.Tensor:
            return self + other

    capture(lambda x: x.mul(2), torch.ones(3).as_subclass(Length))


def BC004() -> None:
    capture(lambda x: x if x.sum() > 0 else -x, X)


def BC005() -> StageError:
    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError("no matrix")
        return x * 2

    return reported(forward, X)


def BC006() -> None:
    def forward(x: torch.Tensor) -> Any:
        endless: list[Any] = [x * 2]
        endless.append(endless)
        return endless

    capture(forward, X)


def BC007() -> None:
    def rows(x: torch.Tensor) -> Any:
        yield locals()["x"] * 2

    capture(rows, X)


def BC008() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        x.real = torch.zeros(2)
        return x * 2

    capture(forward, X)


def BC009() -> StageError:
    return reported(lambda n: n + 1, 3)


def BC010() -> None:
    scale = stagefold.compile(lambda x, n: x * n, backend="eager", fullgraph=True, options={"recompile_limit": 2})
    for n in range(3):
        scale(X, n)


def BC011() -> None:
    @torch.library.custom_op("error_triggers::without_fake", mutates_args=())
    def without_fake(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    capture(lambda x: without_fake(x), X)


def BC012() -> None:
    document = parse_document("""
        capture 1 {
          code = Code(name="forward", file="model.py", first_line=10)
          inputs { %x: f32[3] = tensor x }
          graph {
            input %x: f32[3]
            %y: f32[3] = torch.neg(%x)  # model.py:12 in forward
            return %y
          }
        }""")
    interpret(document, [X, X])


def BC013() -> None:
    bytecap.optimize(torch.relu, lambda graph, inputs: bytecap.executor(graph), recompile_limit=0)


def BC014(patch: pytest.MonkeyPatch) -> None:
    def has_a_bug(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a bug")

    patch.setattr("bytecap.nodes.torch_calls.abstract_call", has_a_bug)
    capture(lambda x: x * 2, X)


def BC015() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        total = 0
        for n in range(10**9):
            total += n
        return x * total

    capture(forward, X)


def BC016() -> StageError:
    events: list[Any] = []

    def scaled(x: torch.Tensor, rate: float) -> torch.Tensor:
        return x * rate

    call = bytecap.optimize(scaled, lambda graph, inputs: bytecap.executor(graph), on_event=events.append)
    call(X, 0.5)
    call(X, 0.25)
    return events[-1].error


def BC017() -> None:
    x = torch.ones(4, 3)
    stagefold.mark_dynamic(x, 0)
    stagefold.compile(lambda x: x + torch.ones(4, 3), backend="eager")(x)


def BC018() -> None:
    """Told to nobody: the frame is captured with these sizes fixed."""
    x = AbstractTensor(contiguous((4, 2, 8), torch.float32))
    tracer = new_tracer()
    size = tracer.sizes.env.create("s0", 4)
    tracer.sizes.sources["s0"] = Local("n")
    refuse_sizes(tracer, "lstm", [x, make_size(tracer.sizes.env, size)])


def BC020() -> None:
    compile_guards([Equals(Local("n"), Ref("x"))], {"n": 3})


def BC021() -> None:
    compile_guards([Equals(Local("n"), 3)], {"n": 4})


def BC030() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        stagefold.graph_break()
        return y + 1

    capture(forward, X)


def BC031() -> None:
    @stagefold.disable(reason="it writes to a file")
    def log(x: torch.Tensor) -> torch.Tensor:
        return x

    capture(lambda x: log(x * 2), X)


def BC032() -> None:
    call = stagefold.compile(lambda x, n: x * n, backend="eager", fullgraph=True)
    call(X, 2)
    with stagefold.set_stance("fail_on_recompile"):
        call(X, 3)


def BC033() -> None:
    wrapper = TwoTensor(X, X * 2).requires_grad_()
    result = stagefold.compile(lambda x: x * 2)(wrapper)
    result.backward(torch.ones(3))
