"""Code from loop kernels: `Codegen` turns `Loop` into `Program` (torch-free), `load` turns a `Unit` into a callable."""

from typing import TYPE_CHECKING

from codegen.choices import Replay
from codegen.cpp.compiler import find_compiler
from codegen.cpp.target import host_isa
from codegen.load import load, prepare, random_threads, why_not_recorded
from stagewire.lazy_names import lazy_names

if TYPE_CHECKING:
    from codegen.stage import Codegen, Options

__all__ = [
    "Codegen", "Options", "Replay", "find_compiler", "host_isa", "load", "prepare", "random_threads",
    "why_not_recorded",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {"codegen.stage": "Codegen Options"})
