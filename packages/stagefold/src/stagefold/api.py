"""`compile()`: torch.compile's signature and meaning."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

import bytecap
from stagefold.backends import resolve_backend
from stagefold.errors import BadModel, NoEffect
from stagefold.pipeline import StageLike


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "stagefold",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    stages: Mapping[str, StageLike] | None = None,
) -> Any:
    """Compile a function, a method or an nn.Module; without `model`, return a decorator.

    fullgraph: refuse (with a coded error) what cannot be captured in one graph, instead of running it plain.
    dynamic: sizes are fixed in each compiled version, and a new size compiles a new version. True is accepted with a
        warning and does the same.
    backend: "stagefold", "eager", a name that torch.compile knows ("inductor", "aot_eager"...: see `list_backends`), or
        a callable over (torch.fx.GraphModule, example_inputs).
    mode, options: see `stagefold.options`; at most one of the two. Other back ends get theirs as from torch.compile.
    disable: return `model` unchanged.
    stages: replacements by slot, {"loopir": my_stage}: a Stage, the name of a registered one, or a plain function
        of the document.

    Errors: `StageError` subclasses with a code, the user's line, the cause and a fix.

    >>> import torch
    >>> double = compile(lambda x: x * 2, backend="eager")
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    settings: dict[str, Any] = dict(
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend=backend,
        mode=mode,
        options=options,
        disable=disable,
        stages=stages,
    )
    if model is None:
        return functools.partial(compile, **settings)
    if dynamic is True:
        warnings.warn(
            "dynamic=True: sizes are fixed in this version, each new size compiles again", NoEffect, stacklevel=2
        )
    if not callable(model):
        raise BadModel(f"compile() cannot compile a {type(model).__name__}")
    if disable:
        return model
    capture_backend, parsed = resolve_backend(backend, mode, options, stages)
    call = bytecap.optimize(model, capture_backend, fullgraph=fullgraph, recompile_limit=parsed.recompile_limit)
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, call, capture_backend, settings)
    if not hasattr(call, "__wrapped__"):
        functools.update_wrapper(call, model)
    return call


class CompiledModule(torch.nn.Module):
    """A module whose call is compiled; everything else is the module's own.

    Parameters, buffers, submodules and hooks are shared with the original by reference, so `state_dict()` has the
    original's keys, an optimizer made from either trains both, and attributes set on one are seen on the other.
    """

    def __init__(
        self, module: torch.nn.Module, call: Callable[..., Any], backend: Any, settings: dict[str, Any]
    ) -> None:
        own = self.__dict__
        own["_original"] = module
        own["_compiled_call"] = call
        own["_backend"] = backend
        own["_settings"] = settings

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled_call(*args, **kwargs)

    forward = __call__

    def __getattr__(self, name: str) -> Any:
        original = self.__dict__["_original"]
        return original if name == "_orig_mod" else getattr(original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)

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
        return compile(copy.deepcopy(self._original, memo), **self._settings)

    def __reduce__(self) -> Any:
        return _compile_again, (self._original, self._settings)


def _compile_again(module: torch.nn.Module, settings: dict[str, Any]) -> Any:
    return compile(module, **settings)
