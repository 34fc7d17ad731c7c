"""The documents between the stages of stagefold. Imports msgspec, never torch.

Modules: `types`, `expr`, `graph` (shared vocabulary); `capture`, `grad`, `prim`, `loop`, `program` (one document each);
`codec`, `tensors` (bytes), `printer`, `parser` (text), `files`, `command`, `verify`, `digest`, `schema`, `stage`,
`capabilities` (names that a library may lack), `errors`, `testing`.
"""

from stagewire.capture import Capture as Capture
from stagewire.codec import Document as Document
from stagewire.codec import decode as decode
from stagewire.codec import encode as encode
from stagewire.codec import load as load
from stagewire.codec import save as save
from stagewire.errors import StageError as StageError
from stagewire.expr import Dim as Dim
from stagewire.expr import Expr as Expr
from stagewire.grad import Grad as Grad
from stagewire.graph import Graph as Graph
from stagewire.graph import Node as Node
from stagewire.graph import Ref as Ref
from stagewire.graph import Value as Value
from stagewire.loop import Loop as Loop
from stagewire.prim import Prim as Prim
from stagewire.program import Program as Program
from stagewire.stage import Stage as Stage
from stagewire.types import TensorType as TensorType
