"""The documents between the stages of stagefold. Imports msgspec, never torch.

Modules: `types`, `expr`, `graph` (shared vocabulary); `capture`, `grad`, `prim`, `loop`, `program` (one document each);
`codec`, `tensors` (bytes), `printer`, `parser` (text), `files`, `command`, `verify`, `digest`, `schema`, `stage`,
`capabilities` (names that a library may lack), `errors`, `testing`.
"""

from stagewire.capture import Capture
from stagewire.codec import Document, decode, encode, load, save
from stagewire.errors import StageError
from stagewire.expr import Dim, Expr
from stagewire.grad import Grad
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.loop import Loop
from stagewire.prim import Prim
from stagewire.printer import print_document
from stagewire.program import Program
from stagewire.stage import Stage
from stagewire.types import TensorType

__all__ = [
    "Capture", "Dim", "Document", "Expr", "Grad", "Graph", "Loop", "Node", "Prim", "Program", "Ref", "Stage",
    "StageError", "TensorType", "Value", "decode", "encode", "load", "print_document", "save",
]  # fmt: skip
