"""`multi_head_attention_forward` whose averaged weights nobody uses, as `nn.MultiheadAttention` calls it by default.

Asked for weights it writes attention out; not asked, it calls `scaled_dot_product_attention`. With a mask it stays: the
two differ for queries whose keys are all masked.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from msgspec.structs import replace

from absint.meta import Meta
from aotgrad.written_attention.match import Refused
from aotgrad.written_attention.site import Choice
from stagewire.capture import Capture
from stagewire.expr import evaluate
from stagewire.grad import Rewrite
from stagewire.graph import Node, Ref, definitions, node_references
from stagewire.graph_passes import output_names, with_nodes
from stagewire.types import TensorType

MULTI_HEAD = "torch.nn.functional.multi_head_attention_forward"


def without_weights(capture: Capture, choice: Choice) -> tuple[Capture, tuple[Rewrite, ...]]:
    """The capture in which such calls give no weights, and what was done or not."""
    nodes, notes = list(capture.graph.nodes), list[Rewrite]()
    if all(node.target != MULTI_HEAD for node in nodes):
        return capture, ()
    used = output_names(capture.graph).union(*map(node_references, nodes))
    for index, node in enumerate(nodes):
        if node.target != MULTI_HEAD or node.kwargs.get("need_weights") is not True or len(node.results) != 2:
            continue
        try:
            _check(capture, node, choice, used)
        except Refused as why:
            notes.append(Rewrite("attention", str(why), refused=True, line=node.line))
        else:
            nodes[index] = replace(node, kwargs={**node.kwargs, "need_weights": False}, results=node.results[:1])
            notes.append(Rewrite("attention", "by a fused kernel", line=node.line))
    return replace(capture, graph=with_nodes(capture.graph, nodes)), tuple(notes)


def _check(capture: Capture, node: Node, choice: Choice, used: Collection[str]) -> None:
    if node.results[1].name in used:
        raise Refused("the weights are used elsewhere too")
    if any(node.kwargs.get(key) is not None for key in ("key_padding_mask", "attn_mask")):
        raise Refused("all keys of a query may be masked")
    if node.kwargs.get("training") is True and node.args[10] != 0:
        raise Refused("the weights are dropped")
    metas = [_heads(capture, node, number) for number in (0, 1, 1)]
    if choice.kernel(metas, None, False, 1.0, 0.0) is None:
        raise Refused("no fused kernel of the device takes it")


def _heads(capture: Capture, node: Node, number: int) -> Meta:
    """Query or key (batch, heads, length, width), as it lies in (length, batch, heads * width)."""
    given, heads, kind = node.args[number], node.args[4], node.results[0].type
    assert isinstance(given, Ref)
    assert isinstance(heads, int)
    assert isinstance(kind, TensorType)
    source = definitions(capture.graph)[given.name].type
    assert isinstance(source, TensorType)
    values = {symbol.name: symbol.hint for symbol in capture.symbols if symbol.hint is not None}
    length, *batch = (evaluate(size, values) for size in source.shape[:-1])
    width = evaluate(kind.shape[-1], values)
    width, count = width // heads, batch[0] if batch else 1
    stride = (heads * width, width, count * heads * width, 1)
    return Meta((count, heads, length, width), stride, getattr(torch, kind.dtype), torch.device(kind.device))
