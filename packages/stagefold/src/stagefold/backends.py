"""Backends by name, and users' backends over `torch.fx.GraphModule`.

"stagefold"  stages two to five of this project
"eager"      stop after bytecap: run the captured graph's calls eagerly
other names  what torch and installed packages register for torch.compile: "inductor", "aot_eager", ...
callable     backend(graph_module, example_inputs) -> callable, as with torch.compile
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import bytecap
from stagefold.errors import UnusedStages
from stagefold.options import Options, parse_options
from stagefold.pipeline import StageLike
from stagewire.capture import Capture

CaptureBackend = Callable[[Capture, tuple[Any, ...] | None], Callable[..., Any]]


class _Default:
    """The one default of the process."""

    backend: str | Callable[..., Any] = "stagefold"


def set_default_backend(backend: str | Callable[..., Any] | None) -> None:
    """What `compile()` takes from now on where it is given no `backend`; None: "stagefold" again."""
    _Default.backend = "stagefold" if backend is None else backend


def get_default_backend() -> str | Callable[..., Any]:
    """What `compile()` takes where it is given no `backend`.

    >>> get_default_backend()
    'stagefold'
    """
    return _Default.backend


def list_backends(exclude_tags: Sequence[str] = ("debug", "experimental")) -> tuple[str, ...]:
    """The names that `compile(backend=...)` accepts; `exclude_tags` as in torch.compiler.list_backends.

    >>> {"stagefold", "eager", "inductor"} <= set(list_backends())
    True
    """
    from stagefold.adapters.foreign import names  # loads torch's compiler, which our own back ends do without

    return tuple(dict.fromkeys((*_BACKENDS, *names(exclude_tags))))


def resolve_backend(
    backend: str | Callable[..., Any],
    mode: str | None,
    options: Mapping[str, Any] | None,
    stages: Mapping[str, StageLike] | None,
) -> tuple[CaptureBackend, Options]:
    """The function of a Capture for a user's `backend`, and the options of the pipeline.

    A foreign back end gets `mode` and `options` as torch.compile would pass them; the pipeline has its defaults then.
    """
    if stages and backend != "stagefold":
        raise UnusedStages(f"the back end {backend!r} has no slot {', '.join(map(repr, stages))}")
    if isinstance(backend, str) and backend in _BACKENDS:
        parsed = parse_options(mode, options)
        return _BACKENDS[backend](parsed, stages), parsed
    from stagefold.adapters.foreign import find, over_graph_module, settings_for

    function, settings = (
        find(backend, mode, options) if isinstance(backend, str) else (backend, settings_for(mode, options))
    )
    return over_graph_module(function, settings), parse_options(None, None)


def _stagefold(options: Options, stages: Mapping[str, StageLike] | None) -> CaptureBackend:
    from stagefold.backend import StagefoldBackend  # loads all stages; the other backends need none

    return StagefoldBackend(options, stages)


def _eager(options: Options, stages: Mapping[str, StageLike] | None) -> CaptureBackend:
    def backend(capture: Capture, example_inputs: tuple[Any, ...] | None) -> Callable[..., Any]:
        return bytecap.executor(capture)

    backend.takes_symbols = backend.takes_data_sizes = True  # type: ignore[attr-defined]
    return backend


_BACKENDS: dict[str, Callable[[Options, Mapping[str, StageLike] | None], CaptureBackend]] = {
    "stagefold": _stagefold,
    "eager": _eager,
}
