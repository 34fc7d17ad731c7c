"""Extern calls that the native executor makes itself: how each is written in words.

A row is a function of (call, Words); it gives the operation's name and operands, or None for a form that is left to
Python (the same operator called through torch.ops).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from codegen.runtime.philox import native_state
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, List, Ref, Tuple
from stagewire.program import CallExtern

Encoded = tuple[str, tuple[Dim, ...]] | None


class Words(Protocol):
    """What a row may ask for: the slot of a buffer, and (slot, type) of each of the first `count` results."""

    def slot(self, name: str) -> int: ...
    def results(self, call: CallExtern, count: int) -> tuple[int, ...]: ...


def bits(number: float) -> int:
    """A double as a 64-bit integer."""
    return struct.unpack("<q", struct.pack("<d", number))[0]


def arguments(call: CallExtern, *names: str) -> dict[str, Arg]:
    """Arguments by name; those not given are left out."""
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


def _optional(arg: Arg, words: Words) -> int:
    return words.slot(arg.name) if isinstance(arg, Ref) else -1


def _tensors(given: dict[str, Any], names: Sequence[str], words: Words) -> list[int]:
    return [words.slot(given[name].name) for name in names]


def _are_tensors(given: dict[str, Any], names: Sequence[str]) -> bool:
    return all(isinstance(given.get(name), Ref) for name in names)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _integers(arg: Arg) -> tuple[Dim, ...]:
    assert isinstance(arg, List | Tuple)
    return tuple(item if isinstance(item, Expr) else int(item) for item in arg.items)  # type: ignore[arg-type]


def _product(op: str, *names: str) -> Callable[[CallExtern, Words], Encoded]:
    """out = first @ second"""

    def encode(call: CallExtern, words: Words) -> Encoded:
        given = arguments(call, *names)
        if set(given) != set(names) or not _are_tensors(given, names):
            return None
        return op, (words.slot(call.results[0]), *_tensors(given, names, words))

    return encode


def _sum_and_product(op: str, *names: str) -> Callable[[CallExtern, Words], Encoded]:
    """out = beta * bias + alpha * first @ second, on floats"""

    def encode(call: CallExtern, words: Words) -> Encoded:
        given: dict[str, Any] = {"beta": 1, "alpha": 1, **arguments(call, *names)}
        type_ = call.result_types[0] if call.result_types else None
        if set(given) != {*names, "beta", "alpha"} or type_ is None or "float" not in type_.dtype:
            return None
        if not _are_tensors(given, names) or not _are_numbers(given["beta"], given["alpha"]):
            return None
        factors = bits(given["beta"]), bits(given["alpha"])
        return op, (words.slot(call.results[0]), *_tensors(given, names, words), *factors)

    return encode


_CONVOLUTION = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


def _geometry(given: dict[str, Arg]) -> tuple[Dim, ...] | None:
    lists = {name: _integers(given[name]) for name in ("stride", "padding", "dilation", "output_padding")}
    (length,) = lengths if len(lengths := {len(values) for values in lists.values()}) == 1 else (0,)
    if not length:
        return None
    return (length, *lists["stride"], *lists["padding"], *lists["dilation"], int(bool(given["transposed"])),
            *lists["output_padding"], given["groups"])  # type: ignore[return-value]  # fmt: skip


def _convolution(call: CallExtern, words: Words) -> Encoded:
    names = ("input", "weight", "bias", *_CONVOLUTION)
    given = arguments(call, *names)
    geometry = _geometry(given) if set(given) == set(names) else None
    if geometry is None or not _are_tensors(given, names[:2]):
        return None
    bias = _optional(given["bias"], words)
    return "CONVOLUTION", (*_tensors(given, names[:2], words), bias, *geometry, *words.results(call, 1))


def _convolution_backward(call: CallExtern, words: Words) -> Encoded:
    names = ("grad_output", "input", "weight", "bias_sizes", *_CONVOLUTION, "output_mask")
    given = arguments(call, *names)
    geometry = _geometry(given) if set(given) == set(names) else None
    if geometry is None or not _are_tensors(given, names[:3]):
        return None
    bias = given["bias_sizes"]
    size = -1 if bias is None else _integers(bias)[0] if len(_integers(bias)) == 1 else None
    if size is None:
        return None
    tensors = _tensors(given, names[:3], words)
    return "CONVOLUTION_BACKWARD", (
        *tensors,
        size,
        *geometry,
        *_integers(given["output_mask"]),
        *words.results(call, 3),
    )


def _attention(op: str, results: int, *names: str) -> Callable[[CallExtern, Words], Encoded]:
    def encode(call: CallExtern, words: Words) -> Encoded:
        order = (*names, "dropout_p", "is_causal")
        given: dict[str, Any] = {"dropout_p": 0.0, "is_causal": False, "attn_mask": None, "scale": None}
        given |= arguments(call, *order)
        if set(given) != {*order, "attn_mask", "scale"} or not _are_tensors(given, names):
            return None
        scale = given["scale"]
        if not _are_numbers(given["dropout_p"], scale or 0.0):
            return None
        tail = (0, 0) if scale is None else (1, bits(scale))
        mask = _optional(given["attn_mask"], words)
        return op, (*_tensors(given, names, words), bits(given["dropout_p"]), int(given["is_causal"]), mask, *tail,
                    *words.results(call, results))  # fmt: skip

    return encode


PHILOX_STATE = "stagefold.philox_state.default"


def _philox_state(call: CallExtern, words: Words) -> Encoded:
    count, device = call.args
    found = native_state(str(device))
    if found is None or not isinstance(count, int):
        return None
    return "PHILOX_STATE", (*found, count, *(words.slot(name) if name else -1 for name in call.results))


NATIVE: dict[str, Callable[[CallExtern, Words], Encoded]] = {
    "aten.mm.default": _product("MM", "self", "mat2"),
    "aten.bmm.default": _product("BMM", "self", "mat2"),
    "aten.addmm.default": _sum_and_product("ADDMM", "self", "mat1", "mat2"),
    "aten.baddbmm.default": _sum_and_product("BADDBMM", "self", "batch1", "batch2"),
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention("ATTENTION", 2, "query", "key", "value"),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention(
        "ATTENTION_BACKWARD", 3, "grad_out", "query", "key", "value", "out", "logsumexp"
    ),
    PHILOX_STATE: _philox_state,
}

WRITES_ITS_RESULT = frozenset(
    {"aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default", PHILOX_STATE}
)
"""These take the memory of their results as arguments."""
