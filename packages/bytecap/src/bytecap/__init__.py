"""bytecap: captures Python frames as torch-level graphs.

optimize(target, backend) -> callable       frames captured, guarded in C, compiled by the backend, replaced
backend ::= (Capture, example_inputs) -> callable(*tensors) -> tuple
executor(capture) -> callable               runs a captured graph call by call: the eager backend
interpret(capture, inputs) -> outputs       the reference meaning of a Capture document
capture(frame_view) -> CaptureResult        one frame, without running it
disable, graph_break, assume_constant, is_compiling, set_stance, reset       what users say (marks, stances)
"""

from bytecap.driver.executor import executor, interpret
from bytecap.driver.optimize import Backend, optimize
from bytecap.driver.stage import CaptureResult, Options, capture
from bytecap.driver.stances import reset, set_stance
from bytecap.driver.undo import Changes, undone
from bytecap.errors import CannotCapture
from bytecap.events import Broke, Captured, CaptureWarning, Event, LimitReached, Refused
from bytecap.graph.size_policy import mark_dynamic, mark_static, maybe_mark_dynamic
from bytecap.guards import print_guard, print_guards
from bytecap.guards.filtering import GuardEntry
from bytecap.guards.native import global_state
from bytecap.guards.process_state import set_torch_modes, torch_modes
from bytecap.hook.directives import assume_constant, disable, graph_break, is_compiling
from bytecap.lookasides.replaced_functions import substitute_in_graph

__all__ = [
    "Backend", "Broke", "CannotCapture", "CaptureResult", "CaptureWarning", "Captured", "Changes", "Event",
    "GuardEntry", "LimitReached", "Options", "Refused", "assume_constant", "capture", "disable", "executor",
    "global_state", "graph_break", "interpret", "is_compiling", "mark_dynamic", "mark_static", "maybe_mark_dynamic",
    "optimize", "print_guard", "print_guards", "reset", "set_stance", "set_torch_modes", "substitute_in_graph",
    "torch_modes", "undone",
]  # fmt: skip
