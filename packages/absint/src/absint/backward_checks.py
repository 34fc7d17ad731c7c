"""What ATen's backwards refuse of real tensors, and let pass of every subclass of Tensor: checked before they run.

| op | the backward is refused |
|---|---|
| linalg.eig, linalg.eigh | where it depends on the phase of complex eigenvectors: an assertion on data |
| clamp by tensors | where a comparison is larger than the one that it is put into in place |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from absint.errors import DataDependentError, RefusedWrite
from absint.rules.pointwise import broadcast

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
