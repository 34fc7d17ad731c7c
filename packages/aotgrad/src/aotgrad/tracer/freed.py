"""Which results have a backward that another result's frees: they have a node of autograd in common that saves tensors.

Eager refuses the second of these, and runs that of results that share nothing, or only what saves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.backward_checks import reached

__all__ = ["Histories"]


class Histories:
    """The nodes of autograd behind each of several results, from before the engine runs until it has."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        self._nodes = [reached([result]) for result in results]
        # A Function of Python tells what it saves before it is freed; the nodes of C++ tell behind it.
        self._saving = {
            node: bool(node._raw_saved_tensors)
            for node in set().union(*self._nodes)
            if hasattr(node, "_raw_saved_tensors")
        }

    def closed_by(self) -> tuple[tuple[int, ...], ...]:
        """For each result the results, itself among them, whose backward uses what its own has freed.

        Empty where each frees what all of them use. To be asked when the engine has run and has freed everything.
        """
        freed = [{node for node in nodes if self._frees(node)} for nodes in self._nodes]
        found = tuple(
            tuple(number for number, others in enumerate(freed) if not own.isdisjoint(others)) for own in freed
        )
        return () if all(len(numbers) == len(freed) for numbers in found) else found

    def _frees(self, node: Any) -> bool:
        return self._saving[node] if node in self._saving else _is_freed(node)


def _is_freed(node: Any) -> bool:
    """Whether a node of C++ has saved a tensor that is gone: to read it is an error then."""
    for name in dir(type(node)):
        if name.startswith("_saved_"):
            try:
                getattr(node, name)
            except RuntimeError:
                return True
    return False
