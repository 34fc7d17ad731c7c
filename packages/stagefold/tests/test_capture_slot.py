"""The slots at the two ends: another front end in place of bytecap, and another loader of units."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import codegen
import stagefold
from stagefold.adapters.from_fx import UnsupportedGraphModule
from stagefold.errors import BadStage, BrokenDocument, OtherInputs, RunsPlain, UnusedStages
from stagefold.testing.conformance import conform
from stagewire.program import Unit


def traced(call: stagefold.Call) -> stagefold.Captured:
    return stagefold.Captured(*stagefold.from_fx(torch.fx.symbolic_trace(call.function), call.args))


def by_make_fx(call: stagefold.Call, mode: str = "symbolic") -> stagefold.Captured:
    module = make_fx(call.function, tracing_mode=mode)(*call.args)
    return stagefold.Captured(*stagefold.from_fx(module, None if mode == "symbolic" else call.args))


def exported(call: stagefold.Call) -> stagefold.Captured:
    program = torch.export.export(
        call.function, call.args, dict(call.kwargs), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    structure = program.call_spec.out_spec
    return stagefold.Captured(
        *stagefold.from_export(program), result=lambda outputs: pytree.tree_unflatten(list(outputs), structure)
    )


class Counting:
    """A stage, by which name it is registered or not."""

    name, version, consumes, produces = "counting", "1", "call", "capture"

    def __init__(self, inner: Any = traced) -> None:
        self.inner = inner
        self.calls: list[stagefold.Call] = []

    def run(self, document: Any, options: object = None) -> stagefold.Captured:
        self.calls.append(document)
        return self.inner(document)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"result": self.inner(x), "parts": (x.relu(), [x.sum(0)])}


@pytest.mark.parametrize("backend", ["stagefold", "eager", "aot_eager", lambda module, inputs: module.forward])
def test_it_goes_with_every_back_end(backend: Any) -> None:
    model, x = Network().inner, torch.randn(4, 8)
    stage = Counting()
    compiled = stagefold.compile(model, stages={"capture": stage}, backend=backend)
    for rows in (4, 2, 4):
        torch.testing.assert_close(compiled(x[:rows]), model(x[:rows]))
    assert [call.args[0].shape[0] for call in stage.calls] == [4, 2]
    compiled(x).square().sum().backward()
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for have, one in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(have, one.grad)


def test_an_exported_program_serves_all_sizes_and_keeps_its_structure() -> None:
    model, stage = Network(), Counting(exported)
    compiled = stagefold.compile(model, stages={"capture": stage})
    assert compiled.state_dict().keys() == model.state_dict().keys()
    for rows in (3, 5, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(stage.calls) == 1


def test_what_does_not_serve_a_call_is_captured_again() -> None:
    stage = Counting(lambda call: traced(stagefold.Call(lambda x: call.function(x, **call.kwargs), call.args, {})))
    f = stagefold.compile(lambda x, scale=1.0: x * scale, stages={"capture": stage}, backend="eager")
    x = torch.ones(2)
    same = [lambda: f(x), lambda: f(x + 1), lambda: f(x.clone())]
    others = [
        lambda: f(x, scale=2.0),  # a constant
        lambda: f(x, scale=True),  # equal to an earlier one, of another type
        lambda: f(x.double()),
        lambda: f(torch.ones(3)),
        lambda: f(torch.ones(2, 1)),
        lambda: f(x.clone().requires_grad_()),
    ]
    for call in same:
        call()
    assert len(stage.calls) == 1
    for number, call in enumerate(others, 2):
        for _ in range(2):
            call()
        assert len(stage.calls) == number
    torch.testing.assert_close(f(x, scale=2.0), x * 2)
    with torch.no_grad():
        f(x)
    assert len(stage.calls) == len(others) + 2


def test_ints_are_inputs() -> None:
    stage = Counting(by_make_fx)
    f = stagefold.compile(lambda x, n: x * n + x.shape[0], stages={"capture": stage})
    for rows, n in ((3, 2), (4, 5), (6, 7)):
        torch.testing.assert_close(f(torch.ones(rows), n), torch.ones(rows) * n + rows)
    assert len(stage.calls) == 1


def test_the_stage_guards_what_else_it_reads() -> None:
    model = nn.Dropout(0.5)

    def with_mode(call: stagefold.Call) -> stagefold.Captured:
        was = call.function.training
        return stagefold.Captured(*stagefold.from_fx(torch.fx.symbolic_trace(call.function), call.args),
                                  holds=lambda other: other.function.training == was)  # fmt: skip

    stage = Counting(with_mode)
    compiled = stagefold.compile(model, stages={"capture": stage})
    x = torch.ones(64)
    for training in (True, False, True):
        model.train(training)
        found = [torch.manual_seed(1) and f(x) for f in (model, compiled)]
        torch.testing.assert_close(*found)
    assert len(stage.calls) == 2


def test_reset_drops_versions_and_a_stance_runs_plain() -> None:
    stage = Counting()
    f = stagefold.compile(torch.nn.ReLU(), stages={"capture": stage}, backend="eager")
    with stagefold.set_stance("force_eager"):
        f(torch.ones(2))
    assert not stage.calls
    f(torch.ones(2))
    stagefold.reset()
    f(torch.ones(2))
    assert len(stage.calls) == 2


def test_past_the_limit_calls_run_plain() -> None:
    stage = Counting()
    f = stagefold.compile(nn.ReLU(), stages={"capture": stage}, options={"recompile_limit": 2})
    for size in (1, 2):
        f(torch.ones(size))
    with pytest.warns(
        RunsPlain, match=r"captured 2 versions; other calls run plain \(input input is f32\[3\], and was"
    ):
        torch.testing.assert_close(f(-torch.ones(3)), torch.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(torch.ones(2))
    assert len(stage.calls) == 2


def test_the_program_raises_its_own_error() -> None:
    f = stagefold.compile(lambda x, i: x.relu_()[i], stages={"capture": lambda call: by_make_fx(call, "fake")})
    torch.testing.assert_close(f(-torch.ones(3), torch.tensor([1])), torch.zeros(1))
    x = -torch.ones(3)
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 3"):
        f(x, torch.tensor([7]))
    torch.testing.assert_close(x, torch.zeros(3))  # as eager leaves it


def test_wrong_stages_are_told() -> None:
    x = torch.ones(2)

    def broken(call: stagefold.Call) -> stagefold.Captured:
        made = traced(call)
        graph = replace(made.capture.graph, nodes=())
        return stagefold.Captured(replace(made.capture, graph=graph), made.held)

    def of_others(call: stagefold.Call) -> stagefold.Captured:
        return traced(stagefold.Call(call.function, (torch.ones(5),), {}))

    with pytest.raises(BrokenDocument, match=r"stage '.*broken' made in slot 'capture' breaks \[G3\]"):
        stagefold.compile(nn.ReLU(), stages={"capture": broken})(x)
    with pytest.raises(BadStage, match="does not serve the call that it was made of: input input is"):
        stagefold.compile(nn.ReLU(), stages={"capture": of_others})(x)
    with pytest.raises(BadStage, match=r"is a NoneType, not a stagefold\.Captured"):
        stagefold.compile(nn.ReLU(), stages={"capture": lambda call: None})(x)
    with pytest.raises(UnsupportedGraphModule):
        stagefold.compile(nn.ReLU(), stages={"capture": lambda call: traced(stagefold.Call(call.function, (), {}))})(x)
    with pytest.raises(UnusedStages, match="no slot 'capture'"):
        stagefold.compile_capture(
            *stagefold.from_fx(torch.fx.symbolic_trace(nn.ReLU()), [x]), stages={"capture": traced}
        )


def test_a_capture_is_refused_where_its_guards_do_not_hold() -> None:
    batch = torch.export.Dim("batch", min=2, max=6)
    capture, held = stagefold.from_export(
        torch.export.export(nn.ReLU(), (torch.ones(3),), dynamic_shapes=({0: batch},))
    )
    call = stagefold.compile_capture(capture, held)
    assert call(torch.ones(6))[0].shape == (6,)
    with pytest.raises(OtherInputs, match=r"the capture is for .* <= 6; sizes are"):
        call(torch.ones(7))


def test_what_a_tracer_took_for_true_of_sizes_is_a_guard() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > x.shape[1]:
            return x * 2
        return x - 1 if x.shape[0] % 2 == 0 else x + x.shape[1]

    stage = Counting(by_make_fx)
    f = stagefold.compile(program, stages={"capture": stage})
    for shape in ((5, 3), (7, 4), (4, 6), (6, 8), (5, 8), (3, 9), (9, 5)):
        x = torch.ones(shape)
        torch.testing.assert_close(f(x), program(x))
    assert len(stage.calls) == 3
    capture, held = stagefold.from_fx(make_fx(program, tracing_mode="symbolic")(torch.ones(5, 3)))
    with pytest.raises(OtherInputs, match="the capture is for"):
        stagefold.compile_capture(capture, held)(torch.ones(3, 5))


def test_a_front_end_is_tried_by_the_kit() -> None:
    def forgets_to_square(call: stagefold.Call) -> stagefold.Captured:
        return by_make_fx(stagefold.Call(lambda x: x, call.args, {}), "fake")

    assert list(conform("capture", lambda call: by_make_fx(call, "fake"), only="float32")) == []
    (misfit,) = conform("capture", forgets_to_square, only="square float32")
    assert "where 2.25 is expected" in misfit.message or "is wrong in" in misfit.message


def test_a_loader_runs_each_unit() -> None:
    units: list[Unit] = []

    def step_by_step(unit: Unit) -> Any:
        units.append(unit)
        return codegen.load(unit, executor="reference")

    model, x = Network().inner, torch.randn(4, 8)
    compiled = stagefold.compile(model, stages={"load": step_by_step})
    compiled(x).square().sum().backward()
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for have, one in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(have, one.grad)
    assert len(units) == 2
    assert all(unit.kernels for unit in units)


def test_a_loader_is_tried_by_the_kit() -> None:
    def off_by_one(unit: Unit) -> Any:
        run = codegen.load(unit)
        return lambda *inputs: [one + 1 for one in run(*inputs)]

    assert list(conform("load", lambda unit: codegen.load(unit, executor="reference"), only="relu float32")) == []
    assert next(misfit.trial for misfit in conform("load", off_by_one, only="relu float32")) == "relu float32"
    with pytest.raises(BadStage, match="'load' returned a NoneType, not a callable"):
        stagefold.compile(torch.exp, stages={"load": lambda unit: None})(torch.ones(2))


def raises(*inputs: torch.Tensor) -> Any:
    raise IndexError("a fault of the loader")


WRONG_RUNS: dict[str, tuple[Any, str]] = {
    "raises": (raises, "what stage 'load' in slot 'load' made of a unit raised IndexError: a fault of the loader"),
    "none": (lambda *inputs: None, "returned a NoneType, not a tuple of its outputs"),
    "too few": (lambda *inputs: (), "returned 0 outputs, the unit has 1"),
    "too many": (lambda *inputs: inputs * 2, "returned 2 outputs, the unit has 1"),
    "shape": (lambda *inputs: (torch.zeros(3),), "is torch.float32[3], where the unit has f32[2]"),
    "dtype": (lambda *inputs: (torch.zeros(2, dtype=torch.int64),), "is torch.int64[2], where the unit has f32[2]"),
    "no tensor": (lambda *inputs: (0.0,), "is float, where the unit has f32[2]"),
}


@pytest.mark.parametrize("name", WRONG_RUNS)
def test_a_loader_that_is_wrong_is_named(name: str) -> None:
    run, message = WRONG_RUNS[name]

    def load(unit: Unit) -> Any:
        return run

    load.__qualname__ = "load"
    x = torch.ones(2)
    with pytest.raises(BadStage, match=re.escape(message)):
        stagefold.compile(lambda x: x.exp(), stages={"load": load})(x)
    assert next(conform("load", load, only="relu float32")).trial == "relu float32"


def test_errors_of_the_program_are_its_own_with_any_loader() -> None:
    """An IndexError of what a loader made may be the program's; then it is."""

    def picks(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return x[position] * 2

    compiled = stagefold.compile(picks, stages={"load": lambda unit: codegen.load(unit, executor="reference")})
    x = torch.ones(3)
    assert torch.equal(compiled(x, torch.tensor([1])), torch.tensor([2.0]))
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        compiled(x, torch.tensor([7]))
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        stagefold.compile(picks, stages={"load": lambda unit: raises})(x, torch.tensor([7]))


def test_errors_of_stages_at_the_ends_name_them() -> None:
    def fails(given: object) -> Any:
        raise ValueError("no")

    for slot in ("capture", "load"):
        with pytest.raises(ValueError, match="no") as raised:
            stagefold.compile(lambda x: x.exp(), stages={slot: fails})(torch.ones(2))
        assert f"in slot {slot!r}" in raised.value.__notes__[0]


@pytest.mark.parametrize("run", [raises, lambda *inputs: None])
def test_a_loader_is_named_behind_a_captured_graph(run: Any) -> None:
    with pytest.raises(BadStage, match="in slot 'load' made of a unit"):
        stagefold.compile(torch.exp, stages={"capture": by_make_fx, "load": lambda unit: run})(torch.ones(2))


def test_a_captured_graph_that_raises_is_told() -> None:
    def another(call: stagefold.Call) -> stagefold.Captured:
        return by_make_fx(stagefold.Call(lambda x, i: x[i + 5], call.args, {}), "fake")

    x, i = torch.arange(4.0), torch.tensor([1])
    with pytest.warns(RunsPlain, match="another' captured raised, and the function does not, which runs plain"):
        assert torch.equal(stagefold.compile(lambda x, i: x[i], stages={"capture": another})(x, i), x[1:2])
