"""FlexAttention as an op: attention between whose scores and whose softmax functions of the program's own stand.

    (out, logsumexp, largest) = stagefold.flex_attention.default(*call)
    (grad_query, grad_key, grad_value) = stagefold.flex_attention_backward.default(*call, grad, logsumexp, delta)

    call ::= query key value [block, ...] [captured, ...] [function, ...] scale [rows, columns] [form, ...]

query: (batch, heads, M, E). key, value: (batch, heads / group, N, E) and (batch, heads / group, N, V). out: (batch,
heads, M, V). logsumexp and largest are of the scores, (batch, heads, M), in units of log(2). delta: as logsumexp, what
is to be taken off the gradient of each weight of a row before it is multiplied with the weight.

A function is the text of a graph (in a Capture: of another Capture), "" for none. Its inputs are scores (batch, heads,
M, N), then what is captured; it computes each element from the score there. Its symbols are its own, those of the sizes
of its inputs. All have one output, row-major:

    score_mod  the scores that the softmax is of       mask_mod  a bool: which of them are there
    gradient   (of the backward; one more input, the gradient of score_mod's output) that of the scores

blocks: which parts of (M, N) of `rows` times `columns` have a key at all: kv_num_blocks, kv_indices, q_num_blocks,
q_indices of a BlockMask, int32; then the same of blocks where the mask leaves out nothing, and is not asked. No blocks:
all are to be computed.

What a call means is what its functions say. forms: what later stages made of them, to be compiled: graphs of prims
behind primops, `Loop`s behind loopir; no forms at all before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from stagewire.capture import Capture, CustomFunction
from stagewire.graph import Arg, Graph, List, Node

CALL = "torch.ops.stagefold.flex_attention"
"""The target in a Capture."""
FORWARD = "stagefold.flex_attention.default"
BACKWARD = "stagefold.flex_attention_backward.default"
TARGETS = frozenset({CALL, FORWARD, BACKWARD})

NO_BLOCKS = 1 << 30
"""Rows and columns of a block that is everything."""

_FUNCTIONS, _FORMS = 5, 8


class Call(NamedTuple):
    """The arguments of both ops; those of the backward alone follow."""

    query: Arg
    key: Arg
    value: Arg
    blocks: Arg
    captured: Arg
    functions: Arg
    scale: Arg
    block_size: Arg
    forms: Arg


def functions_of(node: Node) -> tuple[str, ...]:
    """The texts of the functions that a node calls; none of one that is no FlexAttention."""
    return _texts(node.args[_FUNCTIONS]) if node.target in TARGETS and len(node.args) > _FORMS else ()


@cache
def read_function(text: str) -> tuple[Graph, tuple[CustomFunction, ...]]:
    """The graph that a text is, and the custom functions that it applies. Raises `ParseError`."""
    from stagewire.parser import parse_document, parse_graph  # whose documents are verified, by this among others

    if not text.startswith("capture"):
        return parse_graph(text), ()
    document = parse_document(text)  # of a kind that the text begins with
    assert isinstance(document, Capture)
    return document.graph, document.functions


def with_forms(args: Sequence[Arg], form: Callable[[str], str]) -> tuple[Arg, ...]:
    """The arguments with `form` of each form, or of each function where there are no forms yet."""
    texts = _texts(args[_FORMS]) or _texts(args[_FUNCTIONS])
    made = List(tuple([form(text) if text else "" for text in texts]))
    return (*args[:_FORMS], made, *args[_FORMS + 1 :])


def _texts(arg: Arg) -> tuple[str, ...]:
    return tuple([item for item in arg.items if isinstance(item, str)]) if isinstance(arg, List) else ()
