"""`gradients`: what `torch.autograd.grad` returns, on abstract tensors, and what ATen's backwards refuse of real
tensors but let pass of every subclass of Tensor, which is checked before they run.

| op | the backward is refused |
|---|---|
| linalg.eig, linalg.eigh | where it depends on the phase of complex eigenvectors: an assertion on data |
| clamp by tensors | where a comparison is larger than the one that it is put into in place |

torch's own function imports parts of torch's compiler before it asks the autograd engine; the engine itself needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from absint.errors import DataDependentError, NoTypeRule, RefusedWrite
from absint.rules.pointwise import broadcast
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


Gradients = tuple[torch.Tensor | None, ...]


@contextmanager
def checked_backward(roots: Iterable[torch.Tensor]) -> Iterator[None]:
    """A backward from these tensors that refuses what eager's refuses.

    Errors: `RefusedWrite`; `DataDependentError` for data on a GPU, where an assertion would end the process.
    """
    hooks = [
        node.register_prehook(partial(check, node))
        for node in reached(roots)
        if (check := _CHECKS.get(type(node).__name__.rstrip("0123456789"))) is not None
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_phase(name: str, node: Any, given: Gradients) -> None:
    gradient = given[1]
    if gradient is None or not gradient.is_complex():
        return
    if gradient.device.type != "cpu":
        raise DataDependentError(f"{name} asks whether the loss depends on the phase of the eigenvectors")
    with torch.no_grad():
        turned = (node._saved_eigenvectors.mH @ gradient).diagonal(0, -2, -1).imag
        torch.ops.aten._assert_async.msg((turned.abs() <= _CLOSE).all(), name + _ILL_DEFINED)


_CLOSE = 1e-2
_ILL_DEFINED = (
    ": The eigenvectors in the complex case are specified up to multiplication by e^{i phi}. The specified loss "
    "function depends on this quantity, so it is ill-defined."
)


def _check_clamp(node: Any, given: Gradients) -> None:
    needed = [following is not None for following, _ in node.next_functions]
    if len(needed) == 1:
        return  # by numbers: reading them would fix what they depend on
    low, high = node._saved_min, node._saved_max
    if not (isinstance(low, torch.Tensor) and isinstance(high, torch.Tensor)):
        return
    of_self, of_low, of_high = needed
    shape = node._saved_self.shape
    above, below = broadcast(shape, low.shape), broadcast(shape, high.shape)
    for is_needed, compared, other in ((of_self or of_low, above, high.shape), (of_high, below, low.shape)):
        if is_needed and broadcast(compared, other) != compared:
            raise RefusedWrite(f"a comparison of {list(broadcast(compared, other))} does not fit {list(compared)}")


_CHECKS: dict[str, Callable[[Any, Gradients], None]] = {
    "LinalgEigBackward": partial(_check_phase, "linalg_eig_backward"),
    "LinalgEighBackward": partial(_check_phase, "linalg_eigh_backward"),
    "ClampBackward": _check_clamp,
}
"""By the name of the node of autograd, without its number."""
CHECKED = frozenset(("aten.linalg_eig.default", "aten._linalg_eigh.default", "aten.clamp.Tensor"))
"""The ops that these are the backwards of."""


def reached(roots: Iterable[torch.Tensor]) -> set[Any]:
    """The autograd nodes that a backward from these tensors can come to."""
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen
