"""Write docs/matrix.md: which captures stand in front of which back ends, each pair tried.

    python tools/matrix.py [--check]

Each pair trains a small model against eager, at four batch sizes where the capture carries symbolic sizes: results,
gradients of parameters and of the input, buffers. A cell says how often the back end was called for the sizes. With
--check the page is only compared. `integration_tests/test_matrix.py` runs every cell.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.fx
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

import stagefold
import stagewire
from aotgrad import AotGrad, PartitionStage, bind
from stagefold.adapters import foreign
from stagefold.adapters.dynamo import compile_fx
from stagefold.backend import StagefoldBackend

PAGE = Path(__file__).resolve().parent.parent / "docs" / "matrix.md"
SIZES = (4, 6, 9, 12)


class Model(nn.Module):
    """A batch norm (its buffers are written), a shape that the program reads, views, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.LayerNorm(16))
        self.tail = nn.Linear(16, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.tail(self.head(x))
        return y.view(y.size(0), 2, 3).softmax(-1) * y.size(0)


class Back(NamedTuple):
    """A back end, as `stagefold.compile` and `compile_capture` take it."""

    title: str
    settings: dict[str, Any]
    behind_torch: Any = None
    """The same for torch.compile, where it is ours."""


def left_to_aten(grad: stagewire.Grad) -> stagewire.Prim:
    """A stage of somebody's own: no op is lowered."""
    return stagewire.Prim(binding=grad.binding, joint=grad.joint)


def prints_code(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A back end as people write them."""
    assert module.code
    assert len(inputs) == sum(node.op == "placeholder" for node in module.graph.nodes)
    return module.forward


def gradients_by_aotgrad(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Our gradients and our partition; inductor's own compiler for each direction."""
    capture, held = stagefold.from_fx(module, inputs)
    grad = AotGrad().run(capture)
    cut = PartitionStage().run(stagewire.Prim(binding=grad.binding, joint=grad.joint))

    def compiled(graph: stagewire.Graph | None) -> Callable[..., Any] | None:
        if graph is None:
            return None
        direction = stagefold.to_fx(graph)
        examples = [node.meta["example_value"] for node in direction.graph.nodes if node.op == "placeholder"]
        lowered = make_fx(direction, decomposition_table=select_decomp_table())(*examples)
        run = compile_fx_inner(lowered, examples)
        return lambda *tensors: tuple(run(list(tensors)))

    call = bind(grad.binding if cut.forward is None else cut.binding, compiled(cut.forward), compiled(cut.backward))
    return lambda *tensors: call(*tensors, *held)


BACKS = {
    "stages": Back("stagefold", {}, {}),
    "own stage": Back(
        "stagefold, a stage replaced",
        {"stages": {"primops": left_to_aten}},
        {"options": {"stages": {"primops": left_to_aten}}},
    ),
    "inductor": Back("inductor", {"backend": "inductor"}),
    "AOTAutograd": Back("AOTAutograd, eager", {"backend": "aot_eager"}),
    "aotgrad": Back("aotgrad, inductor's compiler for each direction", {"backend": gradients_by_aotgrad}),
    "callable": Back("a function of a GraphModule", {"backend": prints_code}),
}


def by_bytecap(model: nn.Module, back: Back) -> Callable[..., Any]:
    return stagefold.compile(model, **back.settings)


def by_torch_compile(model: nn.Module, back: Back) -> Callable[..., Any]:
    return torch.compile(model, backend="stagefold", **back.behind_torch)


def by_aot_autograd(model: nn.Module, back: Back) -> Callable[..., Any]:
    def compiler(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return compile_fx(module, inputs, **back.behind_torch)

    return torch.compile(model, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler))


def by_symbolic_trace(model: nn.Module, back: Back) -> Callable[..., Any]:
    captured = stagefold.from_fx(torch.fx.symbolic_trace(model), [_example()])
    return _single(stagefold.compile_capture(*captured, **back.settings))


def by_make_fx(model: nn.Module, back: Back) -> Callable[..., Any]:
    state = copy.deepcopy(model.state_dict())
    traced = make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(_example())
    model.load_state_dict(state)  # the trace has run the batch norm
    return _single(stagefold.compile_capture(*stagefold.from_fx(traced, [_example()]), **back.settings))


def by_export(model: nn.Module, back: Back) -> Callable[..., Any]:
    capture, held = stagefold.from_export(_exported(model))
    mine = list(model.parameters())
    assert [id(one) for one in held if isinstance(one, nn.Parameter)] == [id(one) for one in mine]
    return _single(stagefold.compile_capture(capture, held, **back.settings))


def by_module_of_export(model: nn.Module, back: Back) -> Callable[..., Any]:
    return stagefold.compile(_exported(model).module(), **back.settings)


def _exported(model: nn.Module) -> Any:
    batch = torch.export.Dim("batch", min=2, max=1024)
    return torch.export.export(model, (_example(),), dynamic_shapes=({0: batch},))


def _example() -> torch.Tensor:
    return torch.randn(SIZES[0], 8, requires_grad=True)


def _single(call: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    return lambda *inputs: call(*inputs)[0]


class Front(NamedTuple):
    """What captures a model, and at which sizes its capture is run."""

    title: str
    make: Callable[[nn.Module, Back], Callable[..., Any]]
    sizes: tuple[int, ...] = SIZES


FRONTS = {
    "bytecap": Front("bytecap: `stagefold.compile(model, backend=...)`", by_bytecap),
    "torch.compile": Front('torch.compile: `torch.compile(model, backend="stagefold")`', by_torch_compile),
    "AOTAutograd": Front("AOTAutograd: `fw_compiler=compile_fx, bw_compiler=compile_fx`", by_aot_autograd),
    "symbolic_trace": Front("`torch.fx.symbolic_trace`, `from_fx`", by_symbolic_trace, SIZES[:1]),
    "make_fx": Front('`make_fx(tracing_mode="symbolic")`, `from_fx`', by_make_fx),
    "export": Front("`torch.export` with dynamic shapes, `from_export`", by_export),
    "module": Front("`ep.module()` of it, `stagefold.compile`", by_module_of_export),
}


def pairs() -> Iterator[tuple[str, str]]:
    """The pairs that have something of ours in them."""
    for front in FRONTS:
        for back, one in BACKS.items():
            if front not in ("torch.compile", "AOTAutograd") or one.behind_torch is not None:
                yield front, back


def tried(front: str, back: str) -> int:
    """Train by this pair and compare with eager; how often the back end was called."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager = Model()
    ours = copy.deepcopy(eager)
    with _counted() as calls, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of back ends that take fixed sizes alone
        call = FRONTS[front].make(ours, BACKS[back])
        for size in FRONTS[front].sizes:
            x = torch.randn(size, 8, requires_grad=True)
            given = x.detach().clone().requires_grad_()
            want, have = eager(x), call(given)
            torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)
            for result in (want, have):
                result.square().sum().backward()
            torch.testing.assert_close(given.grad, x.grad, rtol=1e-4, atol=1e-4)
    for (name, want), have in zip(eager.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(
            have.grad, want.grad, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    for want, have in zip(eager.buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(have, want)
    return len(calls)


@contextmanager
def _counted() -> Iterator[list[object]]:
    """Every call of a back end, ours or behind an adapter."""
    calls: list[object] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(None)
            return function(*args, **options)

        return call

    with (
        mock.patch.object(StagefoldBackend, "_compiled", noted(StagefoldBackend._compiled)),
        mock.patch.object(foreign, "_compiled", noted(foreign._compiled)),
    ):
        yield calls


HEAD = """\
# What goes together

`python tools/matrix.py` writes this page; `integration_tests/test_matrix.py` runs every cell. Each pair trains a small
model against eager: results, gradients of the parameters and of the input, buffers.

A row is what captures the program, a column what compiles the graph. A cell says how often the back end was called for
how many batch sizes. "torch alone": a pair without a part of ours.

"""

TAIL = """
* `symbolic_trace` has no symbolic sizes: its capture is of one size, and another one is refused (SF012).
* `ep.module()` checks its inputs, as `from_export` does: what it checks are guards, and a size outside of the exported
  range is refused by the module's own error.
* AOTAutograd calls its compilers for the forward and for the backward.
* "aotgrad, inductor's compiler": `to_fx` of each part that the partition makes; `compile_fx_inner` is for
  known sizes, so that each is compiled (`tools/matrix.py`, `gradients_by_aotgrad`, is the whole adapter).
* torch's accuracy minifier (`TORCHDYNAMO_REPRO_AFTER=dynamo TORCHDYNAMO_REPRO_LEVEL=4`) runs over
  `torch.compile(model, backend="stagefold")`. The scripts that it writes name a back end and leave its options out:
  with options or a mode it is refused, and the error shows how to give them a name (`compile_graph` in a back end of
  your own). `packages/stagefold/tests/test_torch_compile.py` has a planted fault made small so. `stagefold blame` names
  the stage.
"""


def page() -> str:
    """The whole page, every cell tried."""
    cells = {pair: tried(*pair) for pair in pairs()}
    lines = [f"| in front | {' | '.join(back.title for back in BACKS.values())} |", "|---" * (len(BACKS) + 1) + "|"]
    for front, one in FRONTS.items():
        row = [_cell(cells.get((front, back)), len(one.sizes)) for back in BACKS]
        lines.append(f"| {one.title} | {' | '.join(row)} |")
    return HEAD + "\n".join(lines) + "\n" + TAIL


def _cell(count: int | None, sizes: int) -> str:
    return "torch alone" if count is None else f"{count} for {sizes}"


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" in arguments:
        return int(text != PAGE.read_text())
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
