"""A call of a graph that raises, or whose checks fail, has done nothing: what it changed is put back.

    call     ::= snapshot graph (outputs, checks hold | restore)
    snapshot ::= written inputs, their versions, random streams

A graph changes nothing but the inputs that it writes and the random streams that it draws from. What a snapshot costs
is known when the graph is compiled: nothing for a graph that does neither.

A backend may spare the copies of written inputs: a callable whose attribute `atomic` is True promises that its inputs
are as they were wherever it raises, or else raises `stagewire.errors.PartlyDone`. All other callables are given a
snapshot of what their capture writes. The random streams are bytecap's in both cases (2 us on the CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from bytecap.torch_capabilities import TORCH

Compiled = Callable[..., Any]


@dataclass(frozen=True)
class Changes:
    """What a capture may change besides its outputs.

    written: positions of the inputs that it writes. is_final: whether one of these writes cannot be taken back.
    random: the devices whose random streams it may draw from.
    """

    written: tuple[int, ...] = ()
    is_final: bool = False
    random: tuple[torch.device, ...] = ()


def undone(compiled: Compiled, changes: Changes) -> Compiled | None:
    """`compiled`, which leaves inputs and random streams as they were where it raises; None if that cannot be had."""
    written = () if getattr(compiled, "atomic", False) else changes.written
    if written and (changes.is_final or not TORCH.has("set_versions")):
        return None
    return Undone(compiled, replace(changes, written=written)) if written or changes.random else compiled


class Undone:
    """`compiled`, before whose error what it changes is put back.

    checks: how many of its last outputs are checks, which must be true: callable(*inputs) -> the other outputs, or None
        where they are not, and what it changes is put back.
    on_failure: told each time that they are not, or that it raises.
    """

    def __init__(
        self, compiled: Compiled, changes: Changes, checks: int = 0, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        self.compiled = compiled
        self.count = checks
        self.written = changes.written
        self.generators = _generators(changes.random)
        self.on_failure = on_failure
        self.changes_nothing = not self.written and not self.generators

    def __call__(self, *inputs: Any) -> Any:
        before = _NOTHING if self.changes_nothing else Snapshot([inputs[at] for at in self.written], self.generators)
        try:
            outputs = self.compiled(*inputs)
            if not self.count:
                return outputs
            if outputs[-1] if self.count == 1 else all(outputs[-self.count :]):
                return outputs[: -self.count]
        except Exception:
            # What follows a check may fail because it does not hold.
            before.restore()
            self.on_failure()
            raise
        before.restore()
        self.on_failure()
        return None


class Seeded:
    """`compiled` behind calls of these functions that seed random streams, which are undone with it.

    They belong to one capture: others may share its graph.
    """

    def __init__(self, compiled: Compiled, seeds: tuple[tuple[Callable[[int], Any], int], ...]) -> None:
        self.compiled = compiled
        self.seeds = seeds

    def __call__(self, *inputs: Any) -> tuple[Any, ...] | None:
        gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        before = Snapshot((), (torch.default_generator, *gpus))
        for function, number in self.seeds:
            function(number)
        outputs = None
        try:
            outputs = self.compiled(*inputs)
        finally:
            if outputs is None:
                before.restore()
        return outputs  # type: ignore[no-any-return]


class Snapshot:
    """The contents of tensors and the random streams, as they are now."""

    def __init__(self, written: Iterable[torch.Tensor], generators: tuple[torch.Generator, ...]) -> None:
        # Tensors of inference mode have no versions.
        self.written = [
            (tensor, tensor.detach().clone(), None if tensor.is_inference() else tensor._version) for tensor in written
        ]
        self.generators = generators
        self.states = [*map(torch.Generator.get_state, generators)]

    def restore(self) -> None:
        """Put them back, version counters included."""
        with torch.no_grad():
            for tensor, content, _ in self.written:
                tensor.detach().copy_(content)
        versions = {tensor: version for tensor, _, version in self.written if version is not None}
        TORCH.set_versions(tuple(versions), tuple(versions.values()))
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)


_NOTHING = Snapshot((), ())


def _generators(devices: Iterable[torch.device]) -> tuple[torch.Generator, ...]:
    """A device without an index is the current one."""
    return tuple([torch.default_generator if device.type == "cpu" else
                  torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
                  for device in devices])  # fmt: skip
