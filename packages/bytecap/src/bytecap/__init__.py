"""bytecap: captures Python frames as torch-level graphs.

optimize(target, backend) -> callable       frames captured, guarded in C, compiled by the backend, replaced
backend ::= (Capture, example_inputs) -> callable(*tensors) -> tuple
executor(capture) -> callable               runs a captured graph call by call: the eager backend
interpret(capture, inputs) -> outputs       the reference meaning of a Capture document
capture(frame_view) -> CaptureResult        one frame, without running it
"""

from bytecap.errors import CannotCapture
from bytecap.events import Captured, CaptureWarning, Event, LimitReached, Refused
from bytecap.executor import executor
from bytecap.interpret import interpret
from bytecap.optimize import Backend, optimize
from bytecap.options import Options
from bytecap.stage import CaptureResult, capture

__all__ = [
    "Backend",
    "CannotCapture",
    "CaptureResult",
    "CaptureWarning",
    "Captured",
    "Event",
    "LimitReached",
    "Options",
    "Refused",
    "capture",
    "executor",
    "interpret",
    "optimize",
]
