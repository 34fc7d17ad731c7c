"""Backends by name, and users' backends over `torch.fx.GraphModule`.

"stagefold"  stages two to five of this project
"eager"      stop after bytecap: run the captured graph's calls eagerly
"inductor"   torch's own back end behind our capture (an adapter; it imports torch's compiler)
callable     backend(graph_module, example_inputs) -> callable, as with torch.compile
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import bytecap
from stagefold.errors import UnknownBackend
from stagefold.options import Options
from stagefold.pipeline import StageLike
from stagewire.capture import Capture

CaptureBackend = Callable[[Capture, tuple[Any, ...]], Callable[..., Any]]


def list_backends() -> tuple[str, ...]:
    """The names that `compile(backend=...)` accepts."""
    return tuple(_BACKENDS)


def resolve_backend(
    backend: str | Callable[..., Any], options: Options, stages: Mapping[str, StageLike] | None
) -> CaptureBackend:
    """The function of a Capture for a user's `backend`."""
    if callable(backend):
        return _over_graph_module(backend)
    if backend not in _BACKENDS:
        raise UnknownBackend(f"unknown backend {backend!r}", fix=f"Known: {', '.join(_BACKENDS)}; or pass a callable.")
    return _BACKENDS[backend](options, stages)


def _stagefold(options: Options, stages: Mapping[str, StageLike] | None) -> CaptureBackend:
    from stagefold.backend import StagefoldBackend  # loads all stages; the other backends need none

    return StagefoldBackend(options, stages)


def _eager(options: Options, stages: Mapping[str, StageLike] | None) -> CaptureBackend:
    def backend(capture: Capture, example_inputs: tuple[Any, ...]) -> Callable[..., Any]:
        return bytecap.executor(capture)

    return backend


def _inductor(options: Options, stages: Mapping[str, StageLike] | None) -> CaptureBackend:
    from stagefold.adapters.inductor import compile_graph_module

    return _over_graph_module(compile_graph_module)


def _over_graph_module(function: Callable[..., Any]) -> CaptureBackend:
    from stagefold.adapters.fx import to_fx

    def backend(capture: Capture, example_inputs: tuple[Any, ...]) -> Callable[..., Any]:
        return function(to_fx(capture), list(example_inputs))

    return backend


_BACKENDS: dict[str, Callable[[Options, Mapping[str, StageLike] | None], CaptureBackend]] = {
    "stagefold": _stagefold,
    "eager": _eager,
    "inductor": _inductor,
}
