"""Calls that eager may refuse: OpInfo's error inputs, and misfits drawn around its samples.

A misfit is a sample of which one operand is another: a tensor one longer or shorter, of another rank or dtype, without
elements, with an index out of range; a number, a string or a list of ints that says something else.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from tools.opinfo.samples import DTYPES, Sample, draw, has_gradient, is_supported

SAMPLES = 2
"""Samples of each dtype that misfits are drawn around."""


@dataclass(frozen=True)
class Case:
    """One call.

    kind: "error input" or "misfit".
    what: which one, in words: "sample 0 of float32, args[1]: one longer in dim 0".
    op: the callable.
    sample: its arguments.
    fitting: the sample that a misfit was drawn from; None for an error input.
    gradient: run the backward too.
    """

    kind: str
    what: str
    op: Callable[..., Any]
    sample: Sample
    fitting: Sample | None
    gradient: bool


def cases(info: Any, misfits: int) -> list[Case]:
    """The cases of an operator, the same in every process: all error inputs, then at most `misfits` misfits."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = list(_misfits(info))
        chooser = random.Random(info.formatted_name)
        chosen = sorted(chooser.sample(range(len(drawn)), min(misfits, len(drawn))))
        return [*_error_inputs(info), *(drawn[i] for i in chosen)]


def _error_inputs(info: Any) -> Iterator[Case]:
    if info.error_inputs_func is None:
        return
    for number, given in enumerate(info.error_inputs("cpu")):
        s = given.sample_input
        sample = Sample(s.input, tuple(s.args), dict(s.kwargs))
        yield Case("error input", f"error input {number}", info.op, sample, None, gradient=True)


def _misfits(info: Any) -> Iterator[Case]:
    dtypes = [dtype for dtype in DTYPES if is_supported(info, dtype)]
    integers = [dtype for dtype in ("int64", "bool") if dtype in dtypes[1:]]
    for dtype in [*dtypes[:1], *integers[:1]]:
        gradient = has_gradient(info, dtype)
        for number, sample in enumerate(draw(info, dtype, SAMPLES)[:SAMPLES]):
            for place, change, misfit in _around(sample, random.Random(f"{info.formatted_name} {dtype} {number}")):
                what = f"sample {number} of {dtype}, {place}: {change}"
                yield Case("misfit", what, info.op, misfit, sample, gradient)


def _around(sample: Sample, chooser: random.Random) -> Iterator[tuple[str, str, Sample]]:
    """(place, change, sample) of each change of each argument."""
    leaves, spec = tree_flatten_with_path(sample.call(), is_leaf=_is_leaf)
    for at, (path, leaf) in enumerate(leaves):
        for change, other in _others(leaf, chooser):
            values = [value for _, value in leaves]
            values[at] = other
            yield _place(keystr(path)), change, Sample(*tree_unflatten(values, spec))


def _is_leaf(value: Any) -> bool:
    """Lists of ints are one argument: sizes, dimensions, strides."""
    return isinstance(value, (tuple, list)) and len(value) > 0 and all(type(item) is int for item in value)


def _place(path: str) -> str:
    for part, name in (("[0]", "input"), ("[1]", "args"), ("[2]", "kwargs")):
        if path.startswith(part):
            return name + path.removeprefix(part)
    return path


def _others(leaf: Any, chooser: random.Random) -> Iterator[tuple[str, Any]]:
    match leaf:
        case torch.Tensor() if leaf.layout is torch.strided:
            yield from _other_tensors(leaf, chooser)
        case bool() | None:
            return
        case int():
            yield from ((f"{other} for {leaf}", other) for other in (leaf + 9, -leaf - 9))
        case float():
            other = -abs(leaf) - 1.5
            yield f"{other} for {leaf}", other
        case str():
            yield f"'asdf' for {leaf!r}", "asdf"
        case torch.dtype():
            other = torch.int16 if leaf is not torch.int16 else torch.float32
            yield f"{other} for {leaf}", other
        case tuple() | list() if _is_leaf(leaf):
            kind = type(leaf) if type(leaf) in (tuple, list) else tuple
            others = ([*leaf, leaf[-1]], leaf[:-1], [leaf[0] + 9, *leaf[1:]], [-leaf[0] - 9, *leaf[1:]])
            yield from ((f"{list(other)} for {list(leaf)}", kind(other)) for other in others)


def _other_tensors(x: torch.Tensor, chooser: random.Random) -> Iterator[tuple[str, torch.Tensor]]:
    plain = x.detach().resolve_conj().resolve_neg()
    for change, other in itertools.chain(_other_shapes(plain, chooser), _other_dtypes(plain), _other_values(plain)):
        differentiable = other.is_floating_point() or other.is_complex()
        yield change, other.clone().requires_grad_(x.requires_grad and differentiable)


def _other_shapes(x: torch.Tensor, chooser: random.Random) -> Iterator[tuple[str, torch.Tensor]]:
    yield "two of it, in a new dim 0", torch.stack([x, x])
    if not x.dim():
        return
    dim = chooser.randrange(x.dim())
    size = x.shape[dim]
    last = x.narrow(dim, size - 1, 1) if size else x.new_zeros([*x.shape[:dim], 1, *x.shape[dim + 1 :]])
    yield f"one longer in dim {dim}", torch.cat([x, last], dim)
    if size:
        yield f"one shorter in dim {dim}", x.narrow(dim, 0, size - 1)
        yield "without dim 0", x.select(0, 0) if x.shape[0] else x.sum(0, dtype=x.dtype)
    if size > 1:
        yield f"of size 0 in dim {dim}", x.narrow(dim, 0, 0)


def _other_dtypes(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    others = (torch.float64, torch.int64) if x.is_floating_point() else (torch.float32, torch.int32)
    for dtype in others:
        if dtype is not x.dtype:
            yield f"{str(dtype).removeprefix('torch.')} for {str(x.dtype).removeprefix('torch.')}", x.to(dtype)


def _other_values(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Integers may be indices: one of them far above the greatest, -1 and far below zero."""
    if x.dtype not in (torch.int64, torch.int32) or not x.numel():
        return
    for value in (int(x.max()) + 1000, -1, -1000):
        other = x.clone(memory_format=torch.contiguous_format)
        other.view(-1)[-1] = value
        yield f"its last element {value}", other
