"""What `compile()` makes of an nn.Module: another call, and everything else as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


class CompiledModule(torch.nn.Module):
    """A module whose call is compiled (or disabled); everything else is the module's own.

    Parameters, buffers, submodules and hooks are shared with the original by reference, so `state_dict()` has the
    original's keys, an optimizer made from either trains both, and attributes set on one are seen on the other.
    """

    def __init__(
        self, module: torch.nn.Module, call: Callable[..., Any], backend: Any, make: Callable[[torch.nn.Module], Any]
    ) -> None:
        """`make` gives a module like this one from another original: copies and pickles are made by it."""
        own = self.__dict__
        own["_original"] = module
        own["_compiled_call"] = call
        own["_backend"] = backend
        own["_make"] = make

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled_call(*args, **kwargs)

    forward = __call__

    def __getattr__(self, name: str) -> Any:
        original = self.__dict__["_original"]
        return original if name == "_orig_mod" else getattr(original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)

    def _replicate_for_data_parallel(self) -> Any:
        """`nn.DataParallel` runs copies in threads, one for each GPU: copies of the original, which then run plain."""
        return self._original._replicate_for_data_parallel()

    def __delattr__(self, name: str) -> None:
        delattr(self._original, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._original), *self.__dict__})

    def __repr__(self) -> str:
        return f"Compiled({self._original!r})"

    def __bool__(self) -> bool:
        return bool(self._original)

    def __len__(self) -> int:
        return len(self._original)

    def __iter__(self) -> Any:
        return iter(self._original)

    def __getitem__(self, key: Any) -> Any:
        return self._original[key]

    def train(self, mode: bool = True) -> CompiledModule:
        self._original.train(mode)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> CompiledModule:
        self._original._apply(fn, recurse)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.load_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._make(copy.deepcopy(self._original, memo))

    def __reduce__(self) -> Any:
        return self._make, (self._original,)
