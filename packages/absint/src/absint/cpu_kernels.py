"""What the CPU kernels of ATen can do on this processor, as ATen says: asked here and nowhere else.

oneDNN computes in half precision where the processor has instructions for it, and ONEDNN_MAX_CPU_ISA allows them. Where
it does not, ATen takes other kernels by itself; what goes past that choice has to ask.
"""

from __future__ import annotations

from functools import cache

import torch

from absint.torch_capabilities import TORCH

__all__ = ["cpu_kernels", "onednn_computes", "onednn_takes_lstm"]

_HALVES = {torch.bfloat16: "onednn_has_bfloat16", torch.float16: "onednn_has_float16"}


@cache
def onednn_computes(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for a dtype on this processor, be they switched on or not."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype in _HALVES:
        return TORCH.has(_HALVES[dtype]) and getattr(TORCH, _HALVES[dtype])()
    return dtype is torch.float32


def onednn_takes_lstm(dtype: torch.dtype) -> bool:
    """Whether ATen gives whole LSTM layers of a dtype to oneDNN (`use_mkldnn` in ATen/native/RNN.cpp), empty ones
    aside."""
    if not torch.backends.mkldnn.enabled or (dtype is torch.float16 and torch.is_grad_enabled()):
        return False
    return onednn_computes(dtype)


@cache
def cpu_kernels() -> str:
    """All that is asked, in one line: programs are made by it, and so it is part of their keys."""
    dtypes = [str(dtype).removeprefix("torch.") for dtype in (torch.float32, *_HALVES) if onednn_computes(dtype)]
    return f"{torch.backends.cpu.get_cpu_capability()};oneDNN={','.join(dtypes)}"
