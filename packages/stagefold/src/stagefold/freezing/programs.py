"""Both programs of a frozen capture, carried through the stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stagefold.freezing.split import freeze
from stagefold.pipeline import Event, Pipeline
from stagewire.capture import Capture
from stagewire.grad import Grad
from stagewire.program import Program


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
    return Programs(main, None if frozen.prepare is None else pipeline.run(frozen.prepare))
