"""`gradients`: what `torch.autograd.grad` returns, on abstract tensors.

torch's own function imports parts of torch's compiler before it asks the autograd engine; the engine itself needs none.
"""

from __future__ import annotations

from typing import Any

import torch

from absint.backward_checks import checked_backward
from absint.errors import NoTypeRule
from absint.torch_capabilities import TORCH

TARGET = "torch.autograd.grad"
"""The name of `torch.autograd.grad` in documents."""


def gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """See `torch.autograd.grad`; raises what it raises.

    Errors: `NoTypeRule` for batched gradients.
    """
    if is_grads_batched:
        raise NoTypeRule("torch.autograd.grad of batched gradients")
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    roots, wanted = _tuple(outputs), _tuple(inputs)
    if not wanted:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    with checked_backward(roots):
        found = TORCH.run_engine(
            roots,
            _starts(roots, grad_outputs),
            create_graph if retain_graph is None else retain_graph,
            create_graph,
            wanted,
            allow_unreachable=materialize_grads if allow_unused is None else allow_unused,
            accumulate_grad=False,
        )
    if not materialize_grads:
        return tuple(found)
    return tuple(
        torch.zeros_like(tensor, requires_grad=create_graph) if gradient is None else gradient
        for gradient, tensor in zip(found, wanted, strict=True)
    )


def _tuple(tensors: Any) -> tuple[Any, ...]:
    return (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)


def _starts(roots: tuple[torch.Tensor, ...], given: Any) -> tuple[torch.Tensor | None, ...]:
    tangents = (None,) * len(roots) if given is None else _tuple(given)
    return tuple([_start(*pair, number) for number, pair in enumerate(zip(roots, tangents, strict=False))])


def _start(root: torch.Tensor, tangent: torch.Tensor | None, number: int) -> torch.Tensor | None:
    if tangent is None:
        if not root.requires_grad:
            return None
        if root.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if not root.dtype.is_floating_point:
            raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {root.dtype}")
        return torch.ones_like(root, memory_format=torch.preserve_format)
    if tangent.shape != root.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{number}] has a shape of {tangent.shape} and output[{number}] has a shape "
            f"of {root.shape}."
        )
    if tangent.dtype.is_complex != root.dtype.is_complex:
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in dtype: "
            f"grad_output[{number}] has a dtype of {tangent.dtype} and output[{number}] has a dtype of {root.dtype}."
        )
    return tangent
