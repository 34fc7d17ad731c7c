"""Everything that a caller can see of one call: values, types, memory, versions, history, gradients and the error.

report ::= {what: value}         two reports of the same program are equal, or `differences` names what is not
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from absint.functions import tensor_leaves

Report = dict[str, Any]
Make = Callable[[], tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]


def observe(program: Callable[..., Any], make: Make) -> Report:
    """Call `program` once. `make` returns its inputs, and the leaves whose gradients count.

    The gradients are those of the squared norm of every tensor that came out, or was written, with a history.
    """
    torch.manual_seed(5)
    inputs, leaves = make()
    before = [tensor.detach().clone() for tensor in inputs]
    versions = [_version(tensor) for tensor in inputs]
    torch.manual_seed(9)
    try:
        outputs = list(tensor_leaves(program(*inputs)))
    except Exception as error:
        kept = all(a.shape == b.shape and _same(a.detach(), b) for a, b in zip(inputs, before, strict=True))
        return {"raises": isinstance(error, RuntimeError), "inputs unchanged": kept}
    seen = [*outputs, *inputs]
    report: Report = {"random stream": torch.rand(2)}
    for number, tensor in enumerate(seen):
        report[f"type of {number}"] = _type(tensor)
        report[f"history of {number}"] = _history(tensor)
        report[f"values of {number}"] = tensor.detach().clone()
    report["versions"] = [None if b is None else t._version - b for t, b in zip(inputs, versions, strict=True)]
    for number, tensor in enumerate(seen):
        for other in range(number):
            report[f"memory of {other} and {number}"] = _relation(tensor, seen[other])
    roots = [tensor for tensor in seen if _history(tensor) != "refused" and tensor.grad_fn is not None]
    try:
        if roots:
            sum((root.abs().double() ** 2).sum() for root in roots).backward()
    except RuntimeError:
        report["backward raises"] = True
    report.update({f"gradient {number}": leaf.grad for number, leaf in enumerate(leaves)})
    return report


def differences(expected: Report, found: Report) -> list[str]:
    """What is not alike, in words."""
    lines = [f"{key}: there in one only" for key in expected.keys() ^ found.keys()]
    for key in expected.keys() & found.keys():
        a, b = expected[key], found[key]
        if key.startswith("history") and a == "refused":
            continue
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        if not (_same(a, b) if both else a is b or (not isinstance(a, torch.Tensor) and a == b)):
            lines.append(f"{key}: {b} instead of {a}")
    return sorted(lines)


def _type(tensor: torch.Tensor) -> Any:
    strides = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]
    return tensor.dtype, tuple(tensor.shape), strides


def _history(tensor: torch.Tensor) -> Any:
    try:
        return tensor.requires_grad, tensor.is_leaf, tensor.grad_fn is None, tensor.is_inference()
    except RuntimeError:  # a view made without grad mode, whose base was written since: torch does not tell
        return "refused"


def _relation(first: torch.Tensor, second: torch.Tensor) -> Any:
    """One object, views of one memory at a distance, or nothing to do with each other."""
    pointer = first.untyped_storage().data_ptr()
    if pointer == 0 or pointer != second.untyped_storage().data_ptr():
        return "apart"
    return first is second, first.storage_offset() - second.storage_offset()


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.allclose(first.detach(), second.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
