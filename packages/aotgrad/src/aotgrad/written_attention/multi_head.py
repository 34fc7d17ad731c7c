"""`multi_head_attention_forward` whose averaged weights nobody uses, as `nn.MultiheadAttention` calls it by default.

Asked for weights it writes attention out; not asked, it calls `scaled_dot_product_attention`. With a mask it stays: the
two differ for queries whose keys are all masked.
"""

from __future__ import annotations

import torch
from msgspec.structs import replace

from absint.meta import Meta
from aotgrad.written_attention.choice import Choice, hints
from aotgrad.written_attention.match import Refused
from aotgrad.written_attention.operands import tensor_type
from aotgrad.written_attention.program import Program
from stagewire.graph import Node, Ref

__all__ = ["MULTI_HEAD", "without_weights"]

MULTI_HEAD = "torch.nn.functional.multi_head_attention_forward"


def without_weights(program: Program, node: Node, choice: Choice) -> Node | None:
    """The call that gives no weights; None if it is another call, or gives none anyway. Raises `Refused`."""
    if node.target != MULTI_HEAD or node.kwargs.get("need_weights") is not True or len(node.results) != 2:
        return None
    output, weights = (value.name for value in node.results)
    if program.readers.get(weights) or weights in program.returned:
        raise Refused("the weights are used elsewhere too")
    if any(node.kwargs.get(key) is not None for key in ("key_padding_mask", "attn_mask")):
        raise Refused("all keys of a query may be masked")
    if node.kwargs.get("training") is True and node.args[10] != 0:
        raise Refused("the weights are dropped")
    metas = [_heads(program, arg, node.args[4], output) for arg in (node.args[0], node.args[1], node.args[1])]
    if choice.kernel(metas, None, False, 1.0, 0.0) is None:
        raise Refused("no fused kernel of the device takes it")
    return replace(node, kwargs={**node.kwargs, "need_weights": False}, results=node.results[:1])


def _heads(program: Program, given: object, heads: object, output: str) -> Meta:
    """Query or key (batch, heads, length, width), as it lies in (length, batch, heads * width)."""
    assert isinstance(given, Ref)
    assert isinstance(heads, int)
    kind = tensor_type(program, output)
    length, *batch = hints(program.capture, program.types[given.name].shape[:-1])
    width = hints(program.capture, kind.shape)[-1] // heads
    count = batch[0] if batch else 1
    stride = (heads * width, width, count * heads * width, 1)
    return Meta((count, heads, length, width), stride, getattr(torch, kind.dtype), torch.device(kind.device))
