"""What the control flow of a Capture means: Python's own, over functions of tensors.

    cond       ::= first() if predicate else second()
    while_loop ::= while second(*carried): carried = first(*carried)
    scan       ::= for row in rows: carried, outputs = first(*carried, *row)

Autograd follows what runs. In two things torch's ops, whose backward is one, differ from that: an operand that no
function uses which ran has a gradient of zeros, and every result requires grad if an operand does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stagewire.capture import CustomFunction
from stagewire.graph import Graph, node_references
from stagewire.graph_passes import output_names

Body = Callable[..., tuple[Any, ...]]
"""From the arguments of one of the functions to its outputs."""
Ran = tuple[tuple[torch.Tensor, ...], tuple[Graph, ...]]
"""Results, and the graphs that computed them."""


def run_control_flow(
    function: CustomFunction, body_of: Callable[[Graph], Body], operands: Sequence[Any], captured: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """The results of a function with a transform of `CONTROL_FLOW`. body_of: what runs a graph, and has `captured`."""
    assert function.transform is not None
    results, ran = _KINDS[function.transform.kind](function, body_of, tuple(operands))
    given = [*operands[: function.transform.arguments], *captured]
    sources = [(number, x) for number, x in enumerate(given) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not sources or not torch.is_grad_enabled():
        return results
    used = {number for graph in ran for number in _used_inputs(graph)}
    rest = [x for number, x in sources if number not in used]
    if not rest and all(result.requires_grad or not is_differentiable(result) for result in results):
        return results
    return History.apply(len(results), *results, *(rest or [sources[0][1]]))  # type: ignore[no-any-return]


def _cond(function: CustomFunction, body_of: Callable[[Graph], Body], operands: tuple[Any, ...]) -> Ran:
    assert function.second is not None
    graph = function.forward if operands[0] else function.second
    return body_of(graph)(), (graph,)


def _while_loop(function: CustomFunction, body_of: Callable[[Graph], Body], carried: tuple[Any, ...]) -> Ran:
    assert function.second is not None
    condition, body = body_of(function.second), body_of(function.forward)
    if not condition(*carried)[0]:
        return tuple([value.clone() for value in carried]), ()
    holds = True
    while holds:
        carried = body(*carried)
        (holds,) = condition(*carried)
    return carried, (function.forward,)


def _scan(function: CustomFunction, body_of: Callable[[Graph], Body], operands: tuple[Any, ...]) -> Ran:
    assert function.transform is not None
    body, count = body_of(function.forward), function.transform.carried
    carried, steps = operands[:count], []
    for row in zip(*[sequence.unbind() for sequence in operands[count:]], strict=True):
        found = body(*carried, *row)
        carried, outputs = found[:count], found[count:]
        steps.append(outputs)
    return (*carried, *[torch.stack(column) for column in zip(*steps, strict=True)]), (function.forward,)


_KINDS = {"cond": _cond, "while_loop": _while_loop, "scan": _scan}


def _used_inputs(graph: Graph) -> list[int]:
    """Which of its inputs a graph computes with."""
    names = output_names(graph).union(*map(node_references, graph.nodes))
    return [number for number, value in enumerate(graph.inputs) if value.name in names]


def is_differentiable(tensor: torch.Tensor) -> bool:
    """Whether a tensor of its kind can require grad."""
    return tensor.is_floating_point() or tensor.is_complex()


class History(torch.autograd.Function):
    """`apply(count, *results, *sources)`: the results, of which every source has a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results, sources = tensors[:count], tensors[count:]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[result for result in results if not is_differentiable(result)])
        ctx.save_for_backward(*sources)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *gradients, *[torch.zeros_like(source) for source in ctx.saved_tensors])
