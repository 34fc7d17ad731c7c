"""Back ends written for torch.compile, behind our capture.

A back end is called as torch.compile calls it: `backend(graph_module, example_inputs)`, with `mode=` and `options=`
where the user gave them, inside a `torch._guards.TracingContext`. A name is looked for among the entry points of the
group `torch_dynamo_backends` first, then in torch's own registry ("inductor", "aot_eager", "cudagraphs"...).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import torch

from stagefold.adapters.fx import write_fx
from stagefold.errors import BadBackend, FixedSizes, SizesRefused, UnknownBackend
from stagefold.torch_capabilities import foreign
from stagewire.capture import Capture
from stagewire.errors import StageError
from stagewire.symbols import size_reader

GROUP = "torch_dynamo_backends"
GraphBackend = Callable[..., Any]
"""backend(torch.fx.GraphModule, list of tensors, **settings) -> callable(*tensors) -> tuple or list of tensors"""


def over_graph_module(
    backend: GraphBackend, settings: Mapping[str, Any]
) -> Callable[[Capture, tuple[Any, ...] | None], Callable[..., Any]]:
    """A backend of bytecap that hands the graph to `backend`."""

    def compile_capture(capture: Capture, example_inputs: tuple[Any, ...] | None) -> Callable[..., Any]:
        try:
            with foreign().deferred_hooks():
                return _compiled(backend, settings, capture, example_inputs)
        except StageError:
            raise
        except Exception as error:
            if not capture.symbols:
                raise
            message = f"{capture.code.name} is compiled for each size: with symbolic ones {_name(backend)} raises"
            warnings.warn(f"{message} {type(error).__name__}: {error}", FixedSizes, stacklevel=2)
            raise SizesRefused(f"{capture.code.name} with symbolic sizes: {error}") from error

    compile_capture.takes_symbols = True  # type: ignore[attr-defined]
    return compile_capture


def _compiled(
    backend: GraphBackend, settings: Mapping[str, Any], capture: Capture, example_inputs: tuple[Any, ...] | None
) -> Callable[..., Any]:
    """What the back end makes of the graph; its `assumes` are guarded by bytecap."""
    module, values, places = write_fx(capture, example_inputs)
    described = [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]
    examples = [
        example_inputs[place] if example_inputs is not None and isinstance(known, torch.Tensor) else known
        for place, known in zip(places, described, strict=True)
    ]
    with foreign().tracing(foreign().tracing_context(values.mode)):
        compiled = backend(module, examples, **settings)
    if not callable(compiled):
        raise BadBackend(f"backend {_name(backend)} returned a {type(compiled).__name__}, not a callable")
    read = size_reader(tuple(one.value for one in capture.inputs))
    if read is None:
        return compiled

    def call(*inputs: Any) -> Any:
        sizes = read(inputs)
        return compiled(*[sizes[place] if isinstance(place, str) else inputs[place] for place in places])

    call.assumes = values.sizes.asked()  # type: ignore[attr-defined]
    return call


def find(name: str, mode: str | None, options: Mapping[str, Any] | None) -> tuple[GraphBackend, dict[str, Any]]:
    """The back end of this name, and the settings to call it with. Raises `UnknownBackend`."""
    registered = entry_points(group=GROUP)
    if name in registered.names:
        return registered[name].load(), settings_for(mode, options)
    if name == "inductor":
        return foreign().inductor(mode, options, False), {}  # type: ignore[arg-type]
    try:
        return foreign().look_up(name), settings_for(mode, options)
    except foreign().invalid_backend:
        known = ", ".join(("aot_eager", "eager", *names()))
        raise UnknownBackend(f"unknown backend {name!r}", fix=f"Known: {known}; or a callable.") from None


def settings_for(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keyword arguments that torch.compile passes on: only what the user gave."""
    settings: dict[str, Any] = {}
    if mode is not None and mode != "default":
        settings["mode"] = mode
    if options:
        settings["options"] = dict(options)
    return settings


def names(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """What torch and installed packages register; `exclude_tags` as in torch.compiler.list_backends."""
    return torch.compiler.list_backends(tuple(exclude_tags))


def _name(backend: Any) -> str:
    return getattr(backend, "__name__", type(backend).__name__)
