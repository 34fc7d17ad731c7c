"""Arguments of torch calls as a node takes them: known indices, GPUs by number.

`device="cuda"` is the GPU that is current when the call is made, which `torch.cuda.set_device` and `with
torch.cuda.device(1)` change between calls of one function: a captured call names it by its index, under the guard that
the same one is current.

`x[i]` with a 0-dim integer tensor is a view of `x` at a place that only the run knows; its type does not depend on the
place. The call is evaluated with 0 for such an index, and recorded with the tensor.

What takes numbers alone for sizes has them fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from absint import AbstractTensor
from absint.meta import leaves
from absint.symbolic import SizeFloat
from bytecap.context_types import Tracer
from bytecap.errors import FixedSizesNeeded
from bytecap.torch_capabilities import TORCH

_GET = TORCH.current_gpu


def with_index(
    tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a torch call, GPUs without index being the current one."""
    if not torch.cuda.is_available():
        return args, kwargs
    name = getattr(function, "__name__", "")
    if name == "cuda" and len(args) == 1 and kwargs.get("device") is None:
        return args, {**kwargs, "device": current_gpu(tracer)}
    if name in ("to", "cuda") and len(args) > 1 and _is_unnamed(args[1]):
        args = (args[0], current_gpu(tracer), *args[2:])
    if _is_unnamed(kwargs.get("device")):
        kwargs = {**kwargs, "device": current_gpu(tracer)}
    return args, kwargs


def _is_unnamed(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda" and device.index is None
    return isinstance(device, str) and device == "cuda"


def current_gpu(tracer: Tracer) -> torch.device:
    """The current GPU, which each call checks."""
    index = _GET()
    tracer.guards.reading(_GET, (), index)
    return torch.device("cuda", index)


_INDEXING = frozenset({"__getitem__", "__setitem__"})
_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def with_known_index(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a torch call as they are evaluated."""
    if getattr(function, "__name__", "") not in _INDEXING or len(args) < 2:
        return args
    index = args[1]
    known = tuple(_known(item) for item in index) if type(index) is tuple else _known(index)
    return (args[0], known, *args[2:])


def _known(item: Any) -> Any:
    if not isinstance(item, AbstractTensor) or item.dim() or item.dtype not in _INTEGERS:
        return item
    return item if item.storage_record.constant is not None else 0


def refuse_sizes(tracer: Tracer, name: str, given: Any, *, everything: bool = False) -> None:
    """Have the sizes that a failing call was given fixed (or all of the capture), if any is open: its C++ may take
    numbers alone."""
    symbols = tracer.sizes.sources.keys() & (tracer.sizes.sources if everything else set(_open_symbols(given)))
    if symbols:
        error = FixedSizesNeeded(f"{name}() takes no symbolic sizes")
        error.sources = tuple(tracer.sizes.sources[symbol] for symbol in sorted(symbols))
        raise error


def _open_symbols(given: Any) -> Iterator[str]:
    for leaf in leaves(given):
        if isinstance(leaf, torch.SymInt):
            yield from leaf.node.value.symbols
        elif isinstance(leaf, SizeFloat):
            yield from leaf.node.term.symbols
        elif isinstance(leaf, AbstractTensor):
            yield from _open_symbols((leaf.meta.shape, leaf.meta.stride))
