"""compile() for PyTorch programs, out of stages that meet only at documents.

>>> import torch, stagefold
>>> f = stagefold.compile(lambda x: torch.relu(x) + 1)
>>> f(torch.tensor([-1.0, 2.0]))
tensor([1., 3.])
"""

from stagefold.api import CompiledModule as CompiledModule
from stagefold.api import compile as compile
from stagefold.backends import list_backends as list_backends
from stagefold.pipeline import Pipeline as Pipeline
from stagewire.errors import StageError as StageError
