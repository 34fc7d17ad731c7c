"""What a capture borrows from the process, and puts back: the garbage collector, grad mode, autocast, dual levels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.autograd import forward_ad

from absint.wire import to_arg
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedFrame
from bytecap.guards.native import AUTOCAST_DEVICES
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Attribute, Global, Reading, TypeIs
from stagewire.collector import resting_collector


@contextlib.contextmanager
def capture_environment(tracer: Tracer) -> Iterator[None]:
    """Hold the garbage collector, and put torch's modes back after the capture.

    A refusal leaves `with` blocks of the program open; an interrupt (Ctrl-C) may strike in the midst of an `__exit__`.
    """
    modes, depth = torch_modes(), TORCH.count_dispatch_modes()
    with resting_collector():
        try:
            yield
        finally:
            while TORCH.count_dispatch_modes() > depth:
                TORCH.leave_dispatch_mode(None)
            set_torch_modes(modes)
            if any(graph.dual_writes is not None for graph in tracer.graphs):
                forward_ad.exit_dual_level()


@dataclass(frozen=True)
class TorchModes:
    """The modes of torch that captured code may change: grad mode; per device, autocast and its dtype; its cache."""

    grad: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    cache: bool


def torch_modes() -> TorchModes:
    """The modes now."""
    rows = tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in AUTOCAST_DEVICES)
    return TorchModes(torch.is_grad_enabled(), rows, torch.is_autocast_cache_enabled())


def set_torch_modes(modes: TorchModes) -> None:
    """Set them."""
    now = torch_modes()
    if now.grad != modes.grad:
        TORCH.set_grad_enabled(modes.grad)
    if (now.autocast, now.cache) == (modes.autocast, modes.cache):
        return
    for device, (on, dtype) in zip(AUTOCAST_DEVICES, modes.autocast, strict=True):
        torch.set_autocast_enabled(device, on)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(modes.cache)
    torch.clear_autocast_cache()


_DUAL_LEVEL = Global("_current_level", "torch.autograd.forward_ad")


def guard_modes(tracer: Tracer) -> None:
    """Refuse under a mode that sees single operations, which compiled code does not make; guard the default device.

    Errors: UnsupportedFrame, with guards on the kinds of the active function modes.
    """
    for index in range(TORCH.count_function_modes()):
        mode = TORCH.function_mode(index)
        source = Reading(tracer.names.of(TORCH.function_mode), None, (index,))
        tracer.guards.add(TypeIs(source, tracer.names.of(type(mode))))
        if not isinstance(mode, TORCH.device_mode):
            raise _refusal(f"the torch function mode {type(mode).__qualname__}")
        tracer.guards.equals(Attribute(source, "device"), to_arg(mode.device))
    for mode in TORCH.dispatch_mode_stack():
        raise _refusal(f"the torch dispatch mode {type(mode).__qualname__}")
    if TORCH.transform() is not None:
        raise _refusal("a transform of torch.func")
    tracer.guards.equals(_DUAL_LEVEL, forward_ad._current_level)
    if forward_ad._current_level >= 0:
        raise _refusal("forward-mode differentiation")


def _refusal(what: str) -> UnsupportedFrame:
    return UnsupportedFrame(f"{what} is active, and sees every single operation")
