"""compile() for PyTorch programs, out of stages that meet only at documents.

>>> import torch, stagefold
>>> f = stagefold.compile(lambda x: torch.relu(x) + 1)
>>> f(torch.tensor([-1.0, 2.0]))
tensor([1., 3.])
"""

import importlib
from typing import TYPE_CHECKING, Any

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
from stagefold.api import compile, compile_in_place
from stagefold.backends import get_default_backend, list_backends, set_default_backend
from stagefold.cache_artifacts import load_cache_artifacts, save_cache_artifacts
from stagefold.compiled_capture import compile_capture
from stagefold.compiled_module import CompiledModule
from stagefold.compiler_directives import NOT_OFFERED, allow_in_graph, cudagraph_mark_step_begin, disable
from stagefold.explanation import Explanation, explain
from stagefold.pipeline import Pipeline
from stagewire.errors import StageError

if TYPE_CHECKING:
    from stagefold.adapters.from_fx import from_export, from_fx
    from stagefold.adapters.fx import to_fx
    from stagefold.bisector import Blame, blame
    from stagefold.capsule.file_format import Capsule
    from stagefold.capsule.recording import record
    from stagefold.capsule.replay import replay
    from stagefold.capture_slot import Call, Captured
    from stagefold.reference import meaning

__all__ = [
    "Blame", "Call", "Capsule", "Captured", "CompiledModule", "Explanation", "Pipeline", "StageError",
    "allow_in_graph", "assume_constant", "blame", "compile", "compile_capture", "compile_in_place",
    "cudagraph_mark_step_begin", "disable", "explain", "from_export", "from_fx", "get_default_backend",
    "graph_break", "is_compiling", "list_backends", "load_cache_artifacts", "mark_dynamic", "mark_static",
    "maybe_mark_dynamic", "meaning", "record", "replay", "reset", "save_cache_artifacts", "set_default_backend",
    "set_stance", "substitute_in_graph", "to_fx",
]  # fmt: skip

_LATER = {
    "Blame": "bisector", "blame": "bisector", "meaning": "reference",
    "Call": "capture_slot", "Captured": "capture_slot",
    "Capsule": "capsule.file_format", "record": "capsule.recording", "replay": "capsule.replay",
    "from_export": "adapters.from_fx", "from_fx": "adapters.from_fx", "to_fx": "adapters.fx",
}  # fmt: skip
"""By name, the modules that load every stage, or torch.fx."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"stagefold.{_LATER[name]}"), name)
    why = f": {NOT_OFFERED[name]}" if name in NOT_OFFERED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{why}")
