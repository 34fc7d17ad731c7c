"""Foreach ops against eager: lists of tensors of several shapes and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from primops.decompositions import TABLE
from primops.stage import lower_graph
from primops.testing.opinfo import Compare
from stagewire.parser import parse_graph

FOREACH = sorted(target for target in TABLE if "_foreach_" in target)
SHAPES = ((2, 3), (), (0,), (4,))


def tensors(dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1).to(dtype) for shape in SHAPES]


def arguments(target: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """Positional arguments that fit the schema."""
    _, name, overload = target.split(".")
    schema = getattr(getattr(torch.ops.aten, name), overload)._schema
    given: list[Any] = []
    for position, argument in enumerate(schema.arguments):
        kind = str(argument.type)
        if argument.has_default_value():
            break
        if kind == "List[Tensor]":
            given.append(tensors(dtype, position))
        elif kind == "Tensor":
            numbers = [1.5, 2.0, -0.5, 3.1] if argument.name == "scalars" else 1.5
            given.append(torch.tensor(numbers, dtype=torch.float64 if argument.name == "scalars" else dtype))
        else:
            given.append([1.5, 2.0, -0.5, 3.0] if kind.startswith("List") else 1.5)
    return tuple(given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", FOREACH)
def test_agrees_with_eager(target: str, dtype: torch.dtype) -> None:
    _, name, overload = target.split(".")
    mode = Compare()
    given = arguments(target, dtype)
    if name == "_foreach_max":
        given = ([x for x in given[0] if x.numel()],)
    with mode:
        getattr(getattr(torch.ops.aten, name), overload)(*given)
    outcome = mode.outcomes[target]
    assert outcome.compared == 1, "declined"
    assert not outcome.faults


@pytest.mark.parametrize("target", ["aten._foreach_addcdiv.Tensor", "aten._foreach_addcmul.Tensor"])
def test_numbers_on_the_cpu_scale_tensors_of_a_gpu(target: str) -> None:
    """No call but copies of numbers: kernels compute it."""
    lists = [f"[{', '.join(f'%{name}{n}' for n in range(2))}]" for name in "xab"]
    inputs = "".join(f"input %{name}{n}: f32[{3 + n}]@cuda:0\n" for name in "xab" for n in range(2))
    call = f"%y0: f32[3]@cuda:0, %y1: f32[4]@cuda:0 = {target}({', '.join(lists)}, %s)"
    lowered = lower_graph(parse_graph(f"{inputs}input %s: f64[2]\n{call}\nreturn %y0, %y1"))
    calls = [node.target for node in lowered.nodes if not node.target.startswith("prims.")]
    assert calls == ["aten._to_copy.default"] * 2
