"""absint: run torch code on types alone."""

from __future__ import annotations

from absint.errors import DataDependentError
from absint.meta import Meta, contiguous, from_tensor, from_wire, to_wire
from absint.mode import AbstractMode, abstract_call
from absint.tensor import AbstractTensor, Storage

__all__ = [
    "AbstractMode",
    "AbstractTensor",
    "DataDependentError",
    "Meta",
    "Storage",
    "abstract_call",
    "contiguous",
    "from_tensor",
    "from_wire",
    "to_wire",
]
