"""Active modes and transforms of torch: which a capture may run under, and what it then relies on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.autograd import forward_ad

from absint.wire import to_arg
from bytecap.errors import UnsupportedFrame
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Attribute, Global, Reading

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

_DUAL_LEVEL = Global("_current_level", "torch.autograd.forward_ad")


def guard_modes(tracer: Tracer) -> None:
    """Refuse under a mode that sees single operations, which compiled code does not make; guard the default device.

    Errors: UnsupportedFrame, with guards on the kinds of the active function modes.
    """
    for index in range(TORCH.count_function_modes()):
        mode = TORCH.function_mode(index)
        source = Reading(tracer.names.of(TORCH.function_mode), None, (index,))
        tracer.guards.type_is(source, type(mode), None)
        if not isinstance(mode, TORCH.device_mode):
            raise _refusal(f"the torch function mode {type(mode).__qualname__}")
        tracer.guards.equals(Attribute(source, "device"), to_arg(mode.device), None)
    for mode in TORCH.dispatch_mode_stack():
        raise _refusal(f"the torch dispatch mode {type(mode).__qualname__}")
    if TORCH.transform() is not None:
        raise _refusal("a transform of torch.func")
    tracer.guards.equals(_DUAL_LEVEL, forward_ad._current_level, None)
    if forward_ad._current_level >= 0:
        raise _refusal("forward-mode differentiation")


def _refusal(what: str) -> UnsupportedFrame:
    return UnsupportedFrame(f"{what} is active, and sees every single operation")
