"""`options={"freeze": True}`: what depends on weights alone is computed once, and convolutions get packed weights.

    frozen  ::= prepare main            two Grad documents
    prepare : weights -> folded         runs again when a weight has changed
    main    : inputs, folded -> results

`split` cuts a program in two, `fold` rewrites convolutions before. Here both are compiled and run: folded values are
kept as long as no weight has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple

import torch

from stagefold.freezing.split import freeze as freeze
from stagefold.pipeline import Event, Pipeline
from stagewire.capture import Capture
from stagewire.grad import Grad
from stagewire.program import Program

Callee = Callable[..., tuple[Any, ...]]


class FrozenCall:
    """`main(*inputs, *folded)`, where `folded = prepare(*inputs)` is computed again when one of `sources` changed.

    A weight changes by being another tensor, by lying elsewhere (`weight.data = ...`), or by a write that moves its
    version counter. Writes through `weight.data`, numpy or another process move none: they are not seen. Tensors of
    inference mode count no versions, and are folded for each call.
    """

    keeps_inputs = True  # bytecap takes another one for other weights

    def __init__(self, main: Callee, prepare: Callee, sources: tuple[int, ...]) -> None:
        self.main, self.prepare, self.sources = main, prepare, sources
        self._kept: tuple[list[torch.Tensor], list[int], tuple[Any, ...]] | None = None
        self._lock = threading.RLock()
        self.assumes = getattr(main, "assumes", ())
        self.atomic = getattr(main, "atomic", False)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        given = [inputs[place] for place in self.sources]
        kept = self._kept
        if kept is None or not all(map(is_, kept[0], given)) or kept[1] != _state(given):
            if any(map(torch.is_inference, given)):
                return self.main(*inputs, *self._folded(inputs))
            with self._lock:
                kept = self._kept = (given, _state(given), self._folded(inputs))
        return self.main(*inputs, *kept[2])

    def _folded(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # Tensors that are kept must count versions, whatever mode the caller is in.
        with torch.inference_mode(False), torch.no_grad():
            return self.prepare(*inputs)


def _state(tensors: list[torch.Tensor]) -> list[int]:
    """Where the tensors lie, and their versions."""
    return [*[tensor.data_ptr() for tensor in tensors], *[tensor._version for tensor in tensors]]


class Programs(NamedTuple):
    """`main` alone, or with the program that prepares its last inputs."""

    main: Program
    prepare: Program | None = None


def frozen_programs(pipeline: Pipeline, capture: Capture, observe: Callable[[Event], None]) -> Programs:
    """The programs; a capture that cannot be frozen (it has a backward) gives its ordinary one."""
    document = pipeline.run(capture, until="grad", observe=observe)
    frozen = freeze(document) if isinstance(document, Grad) else None
    if frozen is None:
        return Programs(pipeline.run(document, observe=observe))
    main = pipeline.run(frozen.main, observe=observe)
    return Programs(main, None if frozen.prepare is None else pipeline.run(frozen.prepare, observe=observe))
