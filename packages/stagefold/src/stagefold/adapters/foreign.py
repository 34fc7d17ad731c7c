"""Back ends written for torch.compile, behind our capture.

A back end is called as torch.compile calls it: `backend(graph_module, example_inputs)`, with `mode=` and `options=`
where the user gave them, inside a `torch._guards.TracingContext`. A name is looked for among the entry points of the
group `torch_dynamo_backends` first, then in torch's own registry ("inductor", "aot_eager", "cudagraphs"...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import torch

from stagefold.adapters.example_values import fake_mode
from stagefold.adapters.fx import to_fx
from stagefold.errors import BadBackend, UnknownBackend
from stagefold.torch_capabilities import foreign
from stagewire.capture import Capture

GROUP = "torch_dynamo_backends"
GraphBackend = Callable[..., Any]
"""backend(torch.fx.GraphModule, list of tensors, **settings) -> callable(*tensors) -> tuple or list of tensors"""


def over_graph_module(
    backend: GraphBackend, settings: Mapping[str, Any]
) -> Callable[[Capture, tuple[Any, ...]], Callable[..., Any]]:
    """A backend of bytecap that hands the graph to `backend`."""

    def compile_capture(capture: Capture, example_inputs: tuple[Any, ...]) -> Callable[..., Any]:
        module = to_fx(capture, example_inputs)
        with foreign().tracing(foreign().tracing_context(fake_mode())):
            compiled = backend(module, list(example_inputs), **settings)
        if not callable(compiled):
            raise BadBackend(f"backend {_name(backend)} returned a {type(compiled).__name__}, not a callable")
        return compiled

    return compile_capture


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
        raise UnknownBackend(f"unknown backend {name!r}", fix=f"Known: {', '.join(names())}; or a callable.") from None


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
