"""Types, for annotations, of what operations are handed by rooms above their own; none of these is imported to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bytecap.bytecode.decode import Instruction
    from bytecap.evaluator.frame import Frame
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.base import Value
    from bytecap.replacement.emit import Emitter
else:
    Emitter = Frame = Instruction = Tracer = Value = Any

__all__ = ["Emitter", "Frame", "Instruction", "Tracer", "Value"]
