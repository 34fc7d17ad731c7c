"""Constant tensors as data of a document, and back."""

from __future__ import annotations

import ctypes

import torch

from aotgrad.torch_capabilities import TORCH
from stagewire.grad import BoundConstant, Constant


def read_constant(bound: BoundConstant) -> torch.Tensor:
    """A constant of the document as a tensor on its device."""
    constant = bound.value
    dtype = getattr(torch, constant.dtype)
    if not constant.data:
        return torch.empty(constant.shape, dtype=dtype, device=bound.device)
    found = torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.shape)
    return found.to(bound.device)


def write_constant(name: str, tensor: torch.Tensor, device: str = "cpu") -> BoundConstant:
    """The numbers of a real tensor, for `device`."""
    with TORCH.no_modes():
        dense = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        # torch does not bring numpy, and bytes(storage) goes element by element.
        data = ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""
    return BoundConstant(name, Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data), device)
