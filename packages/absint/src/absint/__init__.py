"""absint: run torch code on types alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from absint.errors import DataDependentError
from stagewire.lazy_names import lazy_names

if TYPE_CHECKING:
    from absint.meta import Meta, contiguous, from_tensor, from_wire, to_wire
    from absint.mode import AbstractMode, abstract_call
    from absint.tensor import AbstractTensor, Storage

__all__ = [
    "AbstractMode", "AbstractTensor", "DataDependentError", "Meta", "Storage", "abstract_call", "contiguous",
    "from_tensor", "from_wire", "to_wire",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "absint.meta": "Meta contiguous from_tensor from_wire to_wire",
    "absint.mode": "AbstractMode abstract_call",
    "absint.tensor": "AbstractTensor Storage",
})  # fmt: skip
