"""Types, for annotations, of what operations are handed by rooms above their own; none of these is imported to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bytecap.bytecode.decode import Instruction, Program
    from bytecap.evaluator.frame import Frame
    from bytecap.evaluator.known_objects import KnownObjects
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.arrays.tensors import TensorValue
    from bytecap.objects.base import Value
    from bytecap.objects.functions import CellValue
    from bytecap.objects.instances.objects import ObjectValue
    from bytecap.replacement.emit import Emitter
else:
    CellValue = Emitter = Frame = Instruction = KnownObjects = ObjectValue = Any
    Program = TensorValue = Tracer = Value = Any

__all__ = [
    "CellValue", "Emitter", "Frame", "Instruction", "KnownObjects", "ObjectValue", "Program", "TensorValue",
    "Tracer", "Value",
]  # fmt: skip
