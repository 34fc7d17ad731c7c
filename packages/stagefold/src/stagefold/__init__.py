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
)
from stagefold.api import compile, compile_in_place
from stagefold.backends import list_backends
from stagefold.compiled_capture import compile_capture
from stagefold.compiled_module import CompiledModule
from stagefold.compiler_directives import allow_in_graph, disable
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
    "allow_in_graph", "assume_constant", "blame", "compile", "compile_capture", "compile_in_place", "disable",
    "explain", "from_export", "from_fx", "graph_break", "is_compiling", "list_backends", "mark_dynamic", "mark_static",
    "maybe_mark_dynamic", "meaning", "record", "replay", "reset", "set_stance", "to_fx",
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
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
