"""compile() for PyTorch programs, out of stages that meet only at documents.

>>> import torch, stagefold
>>> f = stagefold.compile(lambda x: torch.relu(x) + 1)
>>> f(torch.tensor([-1.0, 2.0]))
tensor([1., 3.])
"""

from stagefold.api import compile as compile
from stagefold.api import compile_in_place as compile_in_place
from stagefold.backends import list_backends as list_backends
from stagefold.compiled_module import CompiledModule as CompiledModule
from stagefold.control import allow_in_graph as allow_in_graph
from stagefold.control import assume_constant as assume_constant
from stagefold.control import disable as disable
from stagefold.control import graph_break as graph_break
from stagefold.control import is_compiling as is_compiling
from stagefold.control import mark_dynamic as mark_dynamic
from stagefold.control import mark_static as mark_static
from stagefold.control import maybe_mark_dynamic as maybe_mark_dynamic
from stagefold.control import reset as reset
from stagefold.control import set_stance as set_stance
from stagefold.explanation import Explanation as Explanation
from stagefold.explanation import explain as explain
from stagefold.pipeline import Pipeline as Pipeline
from stagewire.errors import StageError as StageError
