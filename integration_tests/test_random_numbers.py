"""Random numbers of compiled programs: those that eager draws, in its order, whatever is fused or computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stagefold
from absint.philox import uniform
from aotgrad import bind
from codegen import load
from stagefold.backend import StagefoldBackend
from stagefold.errors import BadOption, RunsPlain
from stagefold.options import Options
from stagefold.pipeline import Pipeline
from stagewire.capture import Capture, Code, Input, Local
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.parser import parse_document
from stagewire.printer import print_document
from stagewire.types import TensorType

EAGER = {"rng": "eager"}

# Each answers with what it drew, so that equal answers are equal draws.
DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x * 2, 0.3) + 1,
    "dropout of a turned tensor": lambda x: F.dropout(x.t(), 0.3),
    "dropout in float64": lambda x: F.dropout(x.double(), 0.3),
    "dropout in bfloat16": lambda x: F.dropout(x.bfloat16(), 0.3),
    "channels": lambda x: F.dropout2d(x.view(2, 40, 1, 50), 0.3),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, True),
    "slopes": lambda x: F.rrelu(x, 0.1, 0.3, True),
    "several": lambda x: x + torch.rand_like(x) + torch.randn(80, 50) * torch.rand(50),
    "integers": lambda x: torch.randint(0, 10, (80, 50)) + torch.randperm(50),
    "by probability": lambda x: torch.bernoulli(torch.full_like(x, 0.4)) + torch.bernoulli(x.detach(), 0.5),
    "in place": lambda x: x.clone().uniform_() + x.clone().normal_(1.0, 2.0) + x.clone().exponential_(),
    "chosen": lambda x: torch.multinomial(torch.ones_like(x), 3),
    "a draw that nobody uses": lambda x: (torch.rand(3), x * torch.rand(80, 50))[1],
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_eager_bit_for_bit(name: str) -> None:
    results = []
    # By default the gradient of half precision is not rounded on the way.
    options = EAGER | ({"numerics": "eager"} if "bfloat16" in name else {})
    for call in (DRAWS[name], stagefold.compile(DRAWS[name], fullgraph=True, options=options)):
        torch.manual_seed(1)
        x = torch.ones(80, 50, requires_grad=True)
        drawn = call(x)
        if drawn.requires_grad:
            drawn.sum().backward()
        results.append((drawn.detach(), x.grad, torch.rand(2)))
    for got, expected in zip(results[1], results[0], strict=True):
        assert (got is None) == (expected is None)
        assert expected is None or torch.equal(got, expected)


def test_the_seed_before_the_call_decides() -> None:
    call = stagefold.compile(lambda x: F.dropout(x, 0.5), fullgraph=True)
    answers = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        answers.append(call(torch.ones(100)))
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


def test_masks_do_not_depend_on_what_is_fused_with_them() -> None:
    def alone(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)

    def surrounded(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 3).sin().exp()
        mask = F.dropout(x, 0.5)
        return mask, F.softmax(y * mask, -1)

    torch.manual_seed(4)
    one = stagefold.compile(alone, fullgraph=True)(torch.ones(8, 100))
    torch.manual_seed(4)
    other = stagefold.compile(surrounded, fullgraph=True)(torch.ones(8, 100))[0]
    assert torch.equal(one, other)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
def test_recomputation_sees_the_masks_of_the_forward(budget: float) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout((x @ w).tanh(), 0.5).matmul(w).exp().sum()

    results = []
    for call in (program, stagefold.compile(program, fullgraph=True, options={"partition.memory_budget": budget})):
        torch.manual_seed(2)
        x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16).div(8).requires_grad_()
        call(x, w).backward()
        results.append((x.grad, w.grad, torch.rand(2)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


SHAPE = (8, 12, 64)


def dropout_on_a_gpu() -> Capture:
    """gelu, dropout and a product, on a device that need not be there."""
    x = Value("x", TensorType("float32", SHAPE, (768, 64, 1), 0, "cuda:0", True))
    mask = Value("m", TensorType("bool", SHAPE, (768, 64, 1), 0, "cuda:0"))
    nodes = (
        Node("torch.nn.functional.gelu", (Ref("x"),), {}, (Value("a", x.type),)),
        Node("torch.native_dropout", (Ref("a"), 0.25, True), {}, (Value("y", x.type), mask)),
        Node("torch.Tensor.mul", (Ref("y"), Ref("x")), {}, (Value("z", x.type),)),
    )
    return Capture(code=Code("f", "a.py", 1), inputs=(Input(x, Local("x")),), graph=Graph((x,), nodes, (Ref("z"),)))


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_masks_by_formula_are_drawn_or_computed_again(budget: float) -> None:
    """The document for a GPU, run on the CPU: its numbers are those that a GPU of 512 threads would draw."""
    options = Options(verify=True, stage=(("partition", (("memory_budget", budget),)),))
    prim = Pipeline.build(options).with_facts(random_threads=512).run(dropout_on_a_gpu(), until="cut")
    again = {node.target for node in prim.backward.nodes}
    assert ("prims.philox_uniform" in again) == (budget == 0.0)
    assert "prims.philox_state" not in again
    program = Pipeline.build(Options()).run(parse_document(print_document(prim).replace("cuda:0", "cpu")))
    call = bind(program.binding, *load([program.forward, program.backward]))
    x, tangents = torch.randn(SHAPE, requires_grad=True), torch.randn(SHAPE)
    torch.manual_seed(1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    mask = uniform(seed, 0, torch.arange(x.numel()), 512, 4).reshape(SHAPE) < 0.75
    eager = F.gelu(x) * mask / 0.75 * x
    torch.manual_seed(1)
    (result,) = call(x)
    torch.testing.assert_close(result, eager)
    (gradient,) = torch.autograd.grad(result, x, tangents)
    torch.testing.assert_close(gradient, torch.autograd.grad(eager, x, tangents)[0])


def test_they_are_left_to_eager_while_a_cuda_graph_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    capture = dropout_on_a_gpu()
    options = Options(cache_dir=tmp_path)
    prim = Pipeline.build(options).with_facts(random_threads=512).run(capture, until="cut")
    program = Pipeline.build(options).run(parse_document(print_document(prim).replace("cuda:0", "cpu")))
    call = StagefoldBackend(options).load(program, capture)
    x = torch.randn(SHAPE, requires_grad=True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    torch.manual_seed(1)
    with pytest.warns(RunsPlain, match="records a CUDA graph"):
        (result,) = call(x)
    torch.manual_seed(1)
    assert torch.equal(result, torch.native_dropout(F.gelu(x), 0.25, True)[0] * x)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    torch.manual_seed(1)
    assert not torch.equal(call(x)[0] == 0, result == 0)


def test_what_is_known_of_a_gpu_is_part_of_the_key() -> None:
    pipeline = Pipeline.build(Options())
    assert pipeline.with_facts(random_threads=0) == pipeline
    assert (
        pipeline.with_facts(random_threads=512).describe()
        != pipeline.with_facts(random_threads=1024).describe()
        != pipeline.describe()
    )


def test_an_unknown_contract_is_refused() -> None:
    with pytest.raises(BadOption, match="one of default, eager"):
        stagefold.compile(lambda x: x, options={"rng": "philox"})
