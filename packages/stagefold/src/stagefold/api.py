"""`compile()`: torch.compile's signature and meaning; and marks of torch.compiler's names that a program puts on
callables, where more is done than bytecap's own do."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

import bytecap
from stagefold.backends import get_default_backend, resolve_backend
from stagefold.compiled_module import CompiledModule
from stagefold.errors import BadModel, BadOption, NoEffect
from stagefold.pipeline import StageLike, resolve_stage, takes_symbols


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    stages: Mapping[str, StageLike] | None = None,
) -> Any:
    """Compile a function, a method, an nn.Module, or the calls of a class; without `model`, return a decorator.

    fullgraph: refuse (with a coded error) what cannot be captured in one graph, instead of running it plain.
    dynamic: which sizes of inputs (and ints) one version serves. None: what changes from one call to the next is left
        open in the version that is then compiled; True: all at once; False: each new size compiles a new version.
    backend: "stagefold", "eager", a name that torch.compile knows ("inductor", "aot_eager"...: see `list_backends`), or
        a callable over (torch.fx.GraphModule, example_inputs). Default: see `set_default_backend`.
    mode, options: see `stagefold.options`; at most one of the two. Other back ends get theirs as from torch.compile.
        `options={"guard_filter_fn": filter}` drops guards: `bytecap.guards.filtering`, torch.compiler's filters too.
    disable: return `model` unchanged.
    stages: replacements by slot, {"loopir": my_stage}: a Stage, the name of a registered one, or a plain function
        of the document; "capture" has one of a `stagefold.Call`, beside any back end (`stagefold.capture_slot`).

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
    if not callable(model):
        raise BadModel(f"compile() cannot compile a {type(model).__name__}")
    if disable:
        return model
    if isinstance(model, type):
        model.__call__ = compile(model.__call__, **settings)  # type: ignore[method-assign]
        return model
    behind = dict(stages or {})
    front = behind.pop("capture", None)
    options, guard_filter = _without_filter(options)
    if guard_filter is not None and front is not None:
        raise BadOption("guard_filter_fn is for bytecap's guards, and another stage captures")
    backend = get_default_backend() if backend is None else backend
    capture_backend, parsed = resolve_backend(backend, mode, options, behind)
    if dynamic is True and not takes_symbols(capture_backend, False):
        pipeline = getattr(capture_backend, "pipeline", None)
        rows = () if pipeline is None else pipeline.stages
        fixed = [f"stage {one.name!r} in slot {slot!r}" for slot, one, _ in rows if not takes_symbols(one)]
        who = fixed[0] if fixed else f"backend {backend!r}"
        warnings.warn(f"dynamic=True: {who} takes no symbols; each new size is compiled again", NoEffect, stacklevel=2)
    recorder = getattr(capture_backend, "recorder", None)
    if front is None:
        call = bytecap.optimize(
            model,
            capture_backend,
            fullgraph=fullgraph,
            recompile_limit=parsed.recompile_limit,
            dynamic=dynamic,
            on_event=recorder and recorder.note,
            warns=True,
            guard_filter=guard_filter,
        )
    else:
        from stagefold.capture_slot import CaptureSlot

        call = CaptureSlot(model, resolve_stage("capture", front), capture_backend, parsed, dynamic).as_function()
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, call, capture_backend, functools.partial(compile, **settings))
    call._backend = capture_backend  # type: ignore[attr-defined]  # `explain` reads its reports
    if not hasattr(call, "__wrapped__"):
        functools.update_wrapper(call, model)
    return call


def _without_filter(options: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, Callable[..., Any] | None]:
    """The options of the back end, and torch.compile's `guard_filter_fn` among them."""
    if options is None or "guard_filter_fn" not in options:
        return options, None
    found = options["guard_filter_fn"]
    if not callable(found):
        raise BadOption(f"guard_filter_fn must be callable, not {type(found).__name__}")
    return {key: value for key, value in options.items() if key != "guard_filter_fn"} or None, found


def compile_in_place(module: torch.nn.Module, **settings: Any) -> torch.nn.Module:
    """Compile the call of a module where it stands, as `nn.Module.compile` does, and return the module.

    Type, attributes and keys of `state_dict()` stay; copies and pickles are plain. Takes the arguments of `compile`.

    >>> import torch
    >>> module = compile_in_place(torch.nn.ReLU(), backend="eager")
    >>> type(module).__name__, module(torch.tensor([-1.0, 2.0]))
    ('ReLU', tensor([0., 2.]))
    """
    if not isinstance(module, torch.nn.Module):
        raise BadModel(f"compile_in_place() takes an nn.Module, not a {type(module).__name__}")
    module._compiled_call_impl = compile(module._call_impl, **settings)
    return module


NOT_OFFERED = {
    "assume_constant_result": "it is called stagefold.assume_constant; torch's own mark counts as well",
    "nested_compile_region": "torch's own works in code that stagefold compiles",
    "wrap_numpy": "torch's own works in code that stagefold compiles",
    "set_enable_guard_collectives": "guards are checked by each rank alone; torch's own is for torch.compile",
    "load_compiled_function": "see stagefold.save_cache_artifacts and load_cache_artifacts",
    "error_on_graph_break": "compile(fullgraph=True) refuses breaks, stagefold.explain lists them",
}
"""Names of torch.compiler that stagefold has no own form of, and why."""

Target = TypeVar("Target", bound=Callable[..., Any])


def disable(target: Any = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Run a callable plain, inside and outside of compiled code. Without `target`, a decorator.

    target: a function, a method, an nn.Module (a module like it is returned, which shares everything with it), or a
        class (the calls of its instances).
    recursive: what it calls runs plain, too; otherwise that may be compiled by itself.
    reason: told where the call ends a graph.

    >>> import torch
    >>> @disable
    ... def log(x): return x
    >>> log(torch.ones(1))
    tensor([1.])
    """
    if target is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(target, CompiledModule):
        target = target._orig_mod
    settings: dict[str, Any] = dict(recursive=recursive, reason=reason)
    if not isinstance(target, torch.nn.Module):
        return bytecap.disable(target, **settings)
    call = bytecap.disable(target.__call__, **settings)
    return CompiledModule(target, call, None, functools.partial(disable, **settings))


def allow_in_graph(target: Target | Iterable[Target]) -> Any:
    """Say that a function belongs into graphs. It is traced like every other function, so that its operations are
    compiled with their neighbours; one call of it is not one node, as it is with torch.compile. Returns the function.
    """
    return [allow_in_graph(each) for each in target] if isinstance(target, (list, tuple)) else target


def cudagraph_mark_step_begin() -> None:
    """Accepted, and not needed: a result that is still held is never overwritten by the next replay of a CUDA graph."""
