"""What a capture borrows from the process, and puts back: the garbage collector, grad mode, autocast."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def capture_environment() -> Iterator[None]:
    """Hold the garbage collector, and put torch's modes back afterwards (a refusal leaves `with` blocks open)."""
    enabled, grad, autocast = gc.isenabled(), torch.is_grad_enabled(), _autocast_state()
    gc.disable()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)
        if _autocast_state() != autocast:
            _restore_autocast(autocast)
        if enabled:
            gc.enable()


_AUTOCAST_DEVICES = ("cpu", "cuda")


def _autocast_state() -> tuple[Any, ...]:
    rows = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _AUTOCAST_DEVICES]
    return (*rows, torch.is_autocast_cache_enabled())


def _restore_autocast(state: tuple[Any, ...]) -> None:
    *rows, cached = state
    for device, (on, dtype) in zip(_AUTOCAST_DEVICES, rows, strict=True):
        torch.set_autocast_enabled(device, on)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)
    torch.clear_autocast_cache()
