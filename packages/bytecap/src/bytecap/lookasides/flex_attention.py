"""FlexAttention: what torch.nn.attention.flex_attention.flex_attention computes, as one op.

`score_mod` and the block mask's `mask_mod` are functions of places, which torch.vmap maps over (batch, head, query,
key). They are evaluated once each, and become graphs, whose text the op takes (`stagewire.flex_attention`). Under a
transform, or where a function uses a size that none of its tensors has, it is operators of torch instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from absint import AbstractTensor
from absint.flex_attention import attend, precise
from absint.meta import contiguous
from bytecap.context_types import Tracer
from bytecap.nodes.bodies import as_functions
from bytecap.nodes.control_flow import Body
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, Value
from bytecap.objects.containers.sequences import ListValue
from bytecap.objects.numbers.symbolic import SymbolicNumber
from stagewire.capture import Capture, Code, Input, Local, Reading, Symbol, functions_of
from stagewire.expr import dim_of, polynomial_of, symbol
from stagewire.flex_attention import NO_BLOCKS
from stagewire.graph import Graph
from stagewire.graph import Value as WireValue
from stagewire.graph_passes import rename, rename_node
from stagewire.printer import print_document
from stagewire.substitution import map_sizes, replace_symbols, symbols_in
from stagewire.symbols import symbol_places


def flex_attention(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Tensor, ...] = (),
    mask_mod_other_buffers: tuple[Tensor, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__

    block_mask: two lengths; kv_num_blocks, kv_indices, then those of full blocks, or None; the same by queries; what
    only some versions of torch have; rows and columns of a block; the mask_mod.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype != torch.float64:
        query, key, value = (each.to(torch.get_autocast_dtype(device)) for each in (query, key, value))

    def changed(scores: Tensor) -> Tensor:
        found = _over_places(score_mod, scores, (scores,), score_mod_other_buffers)
        return found.to(scores.dtype).clone(memory_format=torch.contiguous_format)

    def kept(scores: Tensor) -> Tensor:
        found = _over_places(block_mask[-1], scores, (), mask_mod_other_buffers)
        return found.clone(memory_format=torch.contiguous_format)

    of_scores = None if _stands_for_none(score_mod, "_identity") else changed
    of_mask = None if _stands_for_none(block_mask[-1], "noop_mask") else kept
    rows, columns = block_mask[-3:-1]
    blocks = [*block_mask[2:4], *block_mask[6:8], *block_mask[4:6], *block_mask[8:10]]
    blocks = [block for block in blocks if block is not None]
    if rows == columns == NO_BLOCKS or len(blocks) % 4 or block_mask[6] is None:
        blocks = []
    instead = lambda: attend(query, key, value, of_scores, of_mask, scale)  # noqa: E731
    return attend_by_functions(query, key, value, blocks, of_scores, of_mask, scale, [rows, columns], instead)


def _stands_for_none(function: Any, name: str) -> bool:
    """Whether it is the function that torch takes where the program gives none."""
    return getattr(function, "__module__", "") == "torch.nn.attention.flex_attention" and function.__name__ == name


def _over_places(
    function: Callable[..., Tensor], scores: Tensor, first: tuple[Tensor, ...], captured: tuple[Tensor, ...]
) -> Any:
    """What a function of one place gives for all of `scores`, (B, H, M, N). first: what it is given ahead of these."""
    indices = [torch.arange(size, device=scores.device) for size in scores.shape]
    for axis in (3, 2, 1, 0):
        places = [None, None, None, None]
        places[axis] = 0  # type: ignore[call-overload]
        function = torch.vmap(function, (*(0 for _ in first), *places, *(None for _ in captured)))
    return index_by_tensors(function, (*first, *indices, *captured))


def index_by_tensors(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function whose subscripts by tensors are `aten.index`; the evaluator knows the meaning."""
    raise AssertionError("called in captured code only")


def attend_by_functions(*args: Any) -> Any:
    """The op, with the text of functions of all scores; the evaluator knows the meaning. The last argument does the
    same without."""
    raise AssertionError("called in captured code only")


def _index_by_tensors(tracer: Tracer, function: Value, args: Value) -> Value:
    tracer.index_modes.append(Constant(None))
    try:
        return function.call(tracer, args.values(tracer), {})  # type: ignore[attr-defined]
    finally:
        tracer.index_modes.pop()


def _attend_by_functions(
    tracer: Tracer, query: TensorValue, key: TensorValue, value: TensorValue, blocks: Value, of_scores: Value,
    of_mask: Value, scale: Value, block_size: Value, instead: Value,
) -> Value:  # fmt: skip
    batch, heads, length, _ = query.abstract.shape
    shape, device = (batch, heads, length, key.abstract.shape[2]), query.abstract.device
    is_unbacked = isinstance(scale, SymbolicNumber) and scale.is_unbacked
    if not isinstance(scale, Constant) or is_unbacked or tracer.graph.is_transformed:
        return instead.call(tracer, [], {})
    for each in (query, key, value):  # kernels are for so many heads, of so many elements
        int(each.abstract.shape[1]), int(each.abstract.shape[3])
    scale = Constant(scale.value)
    abstract = AbstractTensor(contiguous(shape, precise(query.abstract.dtype), device))
    scores = TensorValue(abstract, tracer.graph.name("scores"))
    tracer.inputs.tensors[id(abstract)] = scores
    bodies = [
        None if isinstance(function, Constant) else Body(tracer, "flex_attention", function, [scores], [scores])
        for function in (of_scores, of_mask)
    ]
    graphs, captured = as_functions(tracer, [scores], *[body.recorded for body in bodies if body])
    given = iter(graphs)
    texts = [_text(next(given), tracer) if body else "" for body in bodies]
    if None in texts:
        return instead.call(tracer, [], {})
    tracer.graph.hidden.add(scores.name)
    functions = ListValue([Constant(text) for text in texts])
    given = [query, key, value, blocks, ListValue(captured), functions, scale, block_size, ListValue([])]
    return call_torch(tracer, torch.ops.stagefold.flex_attention, given, {})


def _text(graph: Graph, tracer: Tracer) -> str | None:
    """The text of a graph and of what it applies, without the names and lines of the program round it. Symbols are
    those of the sizes of its inputs; None where it uses others."""
    values = [*graph.inputs, *(value for node in graph.nodes for value in node.results)]
    names = {value.name: f"v{number}" for number, value in enumerate(values)}

    def named(values: Iterable[WireValue]) -> tuple[WireValue, ...]:
        return tuple(replace(value, name=names[value.name]) for value in values)

    nodes = tuple(replace(rename_node(node, names), results=named(node.results), line=None) for node in graph.nodes)
    body = Graph(named(graph.inputs), nodes, tuple(rename(output, names) for output in graph.outputs))
    applied = tuple(
        replace(function, **{
            name: replace(graph, nodes=tuple(replace(node, line=None) for node in graph.nodes))
            for name, graph in function.graphs.items()
        })
        for function in functions_of(tracer.graph.functions, graph)
    )  # fmt: skip
    env = tracer.sizes.env
    body, applied = map_sizes((body, applied), lambda size: dim_of(env.reduce(polynomial_of(size))))
    places = {name: place for name, place in symbol_places(body.inputs).items() if place.what == "size"}
    if not symbols_in((body, applied)) <= places.keys():
        return None
    body, applied = replace_symbols((body, applied), {name: symbol(f"n{number}") for number, name in enumerate(places)})
    inputs = tuple(Input(value, Local(value.name)) for value in body.inputs)
    sources = [Reading("torch.Tensor.size", Local(f"v{at.input}"), (at.dimension,)) for at in places.values()]
    symbols = tuple(
        Symbol(f"n{number}", sources[number], env.hints[name], lower=2) for number, name in enumerate(places)
    )
    code = Code("flex_attention", "", 0)
    return print_document(Capture(code=code, inputs=inputs, graph=body, functions=applied, symbols=symbols))


FLEX_ATTENTION: dict[Any, Callable[..., Value]] = {
    index_by_tensors: _index_by_tensors,
    attend_by_functions: _attend_by_functions,
}
