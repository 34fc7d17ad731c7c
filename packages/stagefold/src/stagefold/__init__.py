"""compile() for PyTorch programs, out of stages that meet only at documents.

>>> import torch, stagefold
>>> f = stagefold.compile(lambda x: torch.relu(x) + 1)
>>> f(torch.tensor([-1.0, 2.0]))
tensor([1., 3.])
"""

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
from stagefold.compiled_module import CompiledModule
from stagefold.compiler_directives import allow_in_graph, disable
from stagefold.explanation import Explanation, explain
from stagefold.pipeline import Pipeline
from stagewire.errors import StageError

__all__ = [
    "CompiledModule",
    "Explanation",
    "Pipeline",
    "StageError",
    "allow_in_graph",
    "assume_constant",
    "compile",
    "compile_in_place",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "reset",
    "set_stance",
]
