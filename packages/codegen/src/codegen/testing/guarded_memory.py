"""Tensors beside pages that nobody may touch: an access outside of a buffer ends the process, as it might anywhere."""

from __future__ import annotations

import ctypes
import mmap

import torch


def guarded(tensor: torch.Tensor, *, at_end: bool) -> torch.Tensor:
    """A copy of a flat tensor whose memory ends (else begins) at a forbidden page."""
    size, page = tensor.nbytes, mmap.PAGESIZE
    if size == 0:
        return tensor.clone()
    inner = -(-size // page) * page
    memory = mmap.mmap(-1, inner + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for forbidden in (start, start + page + inner):
        if libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page + (inner - size if at_end else 0)
    made = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    return made.copy_(tensor)
