"""bytecap: captures Python frames as torch-level graphs.

optimize(target, backend) -> callable       frames captured, guarded in C, compiled by the backend, replaced
backend ::= (Capture, example_inputs) -> callable(*tensors) -> tuple
executor(capture) -> callable               runs a captured graph call by call: the eager backend
interpret(capture, inputs) -> outputs       the reference meaning of a Capture document
capture(frame_view) -> CaptureResult        one frame, without running it
disable, graph_break, assume_constant, is_compiling, set_stance, reset       what users say (marks, stances)
"""

from bytecap.environment import set_torch_modes, torch_modes
from bytecap.errors import CannotCapture
from bytecap.events import Broke, Captured, CaptureWarning, Event, LimitReached, Refused
from bytecap.executor import executor
from bytecap.guards import print_guard
from bytecap.interpret import interpret
from bytecap.marks import assume_constant, disable, graph_break, is_compiling
from bytecap.optimize import Backend, optimize
from bytecap.options import Options
from bytecap.registry import reset
from bytecap.size_policy import mark_dynamic, mark_static, maybe_mark_dynamic
from bytecap.stage import CaptureResult, capture
from bytecap.stances import set_stance
from bytecap.undo import Changes, undone

__all__ = [
    "Backend",
    "Broke",
    "CannotCapture",
    "CaptureResult",
    "CaptureWarning",
    "Captured",
    "Changes",
    "Event",
    "LimitReached",
    "Options",
    "Refused",
    "assume_constant",
    "capture",
    "disable",
    "executor",
    "graph_break",
    "interpret",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "optimize",
    "print_guard",
    "reset",
    "set_stance",
    "set_torch_modes",
    "torch_modes",
    "undone",
]
