"""Subclasses of torch.Tensor that are tensors like any other, with attributes and methods of their own.
from bytecap.torch_capabilities import TORCH

They switch `__torch_function__` off, as nn.Parameter does, so that what is computed from them is a plain tensor; and
they replace nothing that torch.Tensor has.
"""

from __future__ import annotations

from typing import Any

import torch

from bytecap.torch_capabilities import TORCH

OWN_CLASSES = frozenset({*torch.Tensor.__mro__, torch.nn.Parameter, torch.nn.Buffer})
_OFF = TORCH.no_torch_function
# What a class may define without changing what its tensors compute.
_HARMLESS = frozenset({
    "__module__", "__doc__", "__dict__", "__weakref__", "__slots__", "__annotations__", "__qualname__", "__new__",
    "__init__", "__repr__", "__str__", "__deepcopy__", "__reduce_ex__", "__torch_function__", "__firstlineno__",
    "__static_attributes__", "__init_subclass__", "__class_getitem__", "__orig_bases__", "__parameters__",
})  # fmt: skip
_OF_TENSORS = frozenset(dir(torch.Tensor)) | {"__getattr__"}
_OFF_DISPATCH = torch.Tensor.__torch_dispatch__


def is_plain_class(cls: type[Any]) -> bool:
    """Whether a tensor of this class computes as a torch.Tensor does."""
    if cls in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return True
    if getattr(cls, "__torch_function__", None) is not _OFF or cls.__torch_dispatch__ is not _OFF_DISPATCH:
        return False
    own = {name for base in cls.__mro__ if base not in OWN_CLASSES for name in vars(base)}
    return own.isdisjoint(_OF_TENSORS - _HARMLESS)
