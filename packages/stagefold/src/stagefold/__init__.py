"""compile() for PyTorch programs, out of stages that meet only at documents.

>>> import torch, stagefold
>>> f = stagefold.compile(lambda x: torch.relu(x) + 1)
>>> f(torch.tensor([-1.0, 2.0]))
tensor([1., 3.])
"""

from typing import TYPE_CHECKING, Any

from stagewire.errors import StageError
from stagewire.lazy_names import lazy_names

if TYPE_CHECKING:
    from bytecap import (
        assume_constant,
        graph_break,
        is_compiling,
        mark_dynamic,
        mark_static,
        maybe_mark_dynamic,
        reset,
        set_stance,
        substitute_in_graph,
    )
    from stagefold.adapters.from_fx import from_export, from_fx
    from stagefold.adapters.fx import to_fx
    from stagefold.api import allow_in_graph, compile, compile_in_place, cudagraph_mark_step_begin, disable
    from stagefold.artifact.export import export
    from stagefold.artifact.loading import Artifact, load
    from stagefold.backends import get_default_backend, list_backends, set_default_backend
    from stagefold.bisector import Blame, blame
    from stagefold.cache import load_cache_artifacts, save_cache_artifacts
    from stagefold.capsule.file_format import Capsule
    from stagefold.capsule.recording import record
    from stagefold.capsule.replay import replay
    from stagefold.capture_slot import Call, Captured
    from stagefold.compiled_capture import compile_capture
    from stagefold.compiled_module import CompiledModule
    from stagefold.explanation import Explanation, explain
    from stagefold.options import Options
    from stagefold.pipeline import Pipeline
    from stagefold.reference import meaning

__all__ = [
    "Artifact", "Blame", "Call", "Capsule", "Captured", "CompiledModule", "Explanation", "Options", "Pipeline",
    "StageError", "allow_in_graph", "assume_constant", "blame", "compile", "compile_capture", "compile_in_place",
    "cudagraph_mark_step_begin", "disable", "explain", "export", "from_export", "from_fx", "get_default_backend",
    "graph_break", "is_compiling", "list_backends", "load", "load_cache_artifacts", "mark_dynamic", "mark_static",
    "maybe_mark_dynamic", "meaning", "record", "replay", "reset", "save_cache_artifacts", "set_default_backend",
    "set_stance", "substitute_in_graph", "to_fx",
]  # fmt: skip

_find = lazy_names(__name__, {
    "bytecap": "assume_constant graph_break is_compiling mark_dynamic mark_static maybe_mark_dynamic reset set_stance "
               "substitute_in_graph",
    "stagefold.adapters.from_fx": "from_export from_fx",
    "stagefold.adapters.fx": "to_fx",
    "stagefold.api": "allow_in_graph compile compile_in_place cudagraph_mark_step_begin disable",
    "stagefold.artifact.export": "export",
    "stagefold.artifact.loading": "Artifact load",
    "stagefold.backends": "get_default_backend list_backends set_default_backend",
    "stagefold.bisector": "Blame blame",
    "stagefold.cache": "load_cache_artifacts save_cache_artifacts",
    "stagefold.capsule.file_format": "Capsule",
    "stagefold.capsule.recording": "record",
    "stagefold.capsule.replay": "replay",
    "stagefold.capture_slot": "Call Captured",
    "stagefold.compiled_capture": "compile_capture",
    "stagefold.compiled_module": "CompiledModule",
    "stagefold.explanation": "Explanation explain",
    "stagefold.options": "Options",
    "stagefold.pipeline": "Pipeline",
    "stagefold.reference": "meaning",
})  # fmt: skip
"""What only loads an artifact imports no compiler."""


def __getattr__(name: str) -> Any:
    try:
        return _find(name)
    except AttributeError as error:
        if name.startswith("_"):
            raise
        from stagefold.api import NOT_OFFERED  # names of torch.compiler, and why they are not here

        raise AttributeError(f"{error}: {NOT_OFFERED[name]}" if name in NOT_OFFERED else str(error)) from None
