"""What primops needs of torch beyond its documented interface; see `stagewire.capabilities`."""

from __future__ import annotations

import torch

from stagewire.capabilities import Capabilities, Capability

__all__ = ["TORCH"]

TORCH = Capabilities(
    torch,
    "primops",
    below_autograd=Capability(
        "torch._C._AutoDispatchBelowAutograd", "oneDNN's LSTM, which gives its workspace in grad mode alone",
        "training of LSTMs on the CPU is refused",
    ),
)  # fmt: skip
