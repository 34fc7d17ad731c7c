"""Operators that the native executor calls itself (operators.h), and how a call of one is written in words.

A signature is the parameters of the operator of ATen in its order, each with what its words say:

    name            the slot of a tensor            name:integer    a number
    name:tensor?    a slot, or -1                   name:double     the bits of one
    name:list       how many numbers, each          name:double?    whether there is one, its bits

A call in another form is left to Python (the same operator called through torch.ops).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from codegen.runtime.philox import native_state
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, List, Ref, Tuple
from stagewire.program import CallExtern

Encoded = tuple[str, tuple[Dim, ...]] | None
"""The name of an operation and its operands."""


class Words(Protocol):
    """What an encoder may ask for: the slot of a buffer, and (slot, type) of each of the first `count` results."""

    def slot(self, name: str) -> int: ...
    def results(self, call: CallExtern, count: int) -> tuple[int, ...]: ...


class Signature(NamedTuple):
    """An operation. out: whether the first argument is memory for its only result; else it makes so many `results`.

    defaults: of parameters that a call may leave out. is_floating: whether it is for results of floats alone.
    """

    operation: str
    parameters: str
    results: int = 0
    defaults: Mapping[str, Any] = {}
    is_floating: bool = False

    @property
    def out(self) -> bool:
        return self.results == 0


_FACTORS: dict[str, Any] = {"beta": 1, "alpha": 1}
_GEOMETRY = "stride:list padding:list dilation:list transposed:integer output_padding:list groups:integer"
_ATTENTION = "dropout_p:double is_causal:integer attn_mask:tensor? scale:double?"
_NO_MASK = {"dropout_p": 0.0, "is_causal": False, "attn_mask": None, "scale": None}
_FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
_SIGNATURES = {
    "aten.mm.default": Signature("MM", "self mat2"),
    "aten.bmm.default": Signature("BMM", "self mat2"),
    "aten.addmm.default": Signature("ADDMM", "self mat1 mat2 beta:double alpha:double", 0, _FACTORS, True),
    "aten.baddbmm.default": Signature("BADDBMM", "self batch1 batch2 beta:double alpha:double", 0, _FACTORS, True),
    "aten.convolution.default": Signature("CONVOLUTION", f"input weight bias:tensor? {_GEOMETRY}", 1),
    "aten.convolution_backward.default": Signature(
        "CONVOLUTION_BACKWARD", f"grad_output input weight bias_sizes:list {_GEOMETRY} output_mask:list", 3
    ),
    f"{_FLASH}.default": Signature("ATTENTION", f"query key value {_ATTENTION}", 2, _NO_MASK),
    f"{_FLASH}_backward.default": Signature(
        "ATTENTION_BACKWARD", f"grad_out query key value out logsumexp {_ATTENTION}", 3, _NO_MASK
    ),
}


def _encoded(signature: Signature, call: CallExtern, words: Words) -> Encoded:
    """A call by its signature; None for another form."""
    rows = [row.partition(":")[::2] for row in signature.parameters.split()]
    given = {**signature.defaults, **dict(zip([name for name, _ in rows], call.args, strict=False)), **call.kwargs}
    floats = any(type_ is not None and "float" in type_.dtype for type_ in call.result_types[:1])
    if given.keys() != {name for name, _ in rows} or (signature.is_floating and not floats):
        return None
    said = [_words(given[name], kind, words) for name, kind in rows]
    if None in said:
        return None
    out = (words.slot(call.results[0]),) if signature.out else ()
    operands = (word for one in said for word in one or ())
    return signature.operation, (*out, *operands, *words.results(call, signature.results))


def _words(arg: Arg, kind: str, words: Words) -> tuple[Dim, ...] | None:
    """What an argument is in words; None for one of another kind."""
    match kind, arg:
        case "" | "tensor?", Ref(name):
            return (words.slot(name),)
        case "tensor?", None:
            return (-1,)
        case "list", List(items) | Tuple(items):
            return (len(items), *(item if isinstance(item, Expr) else int(item) for item in items))  # type: ignore[arg-type]
        case "list", None:
            return (0,)
        case "integer", int() | Expr():
            return (arg if isinstance(arg, Expr) else int(arg),)
        case "double", int() | float():
            return (bits(arg),)
        case "double?", int() | float() | None:
            return (0, 0) if arg is None else (1, bits(arg))
    return None


def bits(number: float) -> int:
    """A double as a 64-bit integer."""
    return struct.unpack("<q", struct.pack("<d", number))[0]  # type: ignore[no-any-return]


PHILOX_STATE = "stagefold.philox_state.default"


def _philox_state(call: CallExtern, words: Words) -> Encoded:
    count, device = call.args
    found = native_state(str(device))
    if found is None or not isinstance(count, int):
        return None
    return "PHILOX_STATE", (*found, count, *(words.slot(name) if name else -1 for name in call.results))


NATIVE: dict[str, Callable[[CallExtern, Words], Encoded]] = {
    **{target: partial(_encoded, signature) for target, signature in _SIGNATURES.items()},
    PHILOX_STATE: _philox_state,
}

WRITES_ITS_RESULT = frozenset({PHILOX_STATE, *(target for target, one in _SIGNATURES.items() if one.out)})
"""These take the memory of their results as arguments."""
