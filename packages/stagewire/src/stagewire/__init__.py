"""The documents between the stages of stagefold. Imports msgspec, never torch.

Modules: `types`, `expr`, `graph` (shared vocabulary); `capture`, `grad`, `prim`, `loop`, `program` (one document each);
`codec`, `tensors` (bytes), `printer`, `parser` (text), `files`, `command`, `verify`, `digest`, `schema`, `stage`,
`capabilities` (names that a library may lack), `errors`, `testing`.
"""

from typing import TYPE_CHECKING

from stagewire.capture import Capture
from stagewire.codec import Document, decode, encode, load, save
from stagewire.errors import StageError
from stagewire.expr import Dim, Expr
from stagewire.grad import Grad
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.lazy_names import lazy_names
from stagewire.loop import Loop
from stagewire.prim import Prim
from stagewire.program import Program
from stagewire.stage import Stage
from stagewire.types import TensorType

if TYPE_CHECKING:
    from stagewire.printer import print_document

__all__ = [
    "Capture", "Dim", "Document", "Expr", "Grad", "Graph", "Loop", "Node", "Prim", "Program", "Ref", "Stage",
    "StageError", "TensorType", "Value", "decode", "encode", "load", "print_document", "save",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {"stagewire.printer": "print_document"})
