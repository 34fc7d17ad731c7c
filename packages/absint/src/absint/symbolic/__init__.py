"""Symbolic sizes: an expression kernel, what is known of the symbols, and sizes that torch's C++ takes.

size     ::= int | Size(polynomial)                 a torch.SymInt that computes and compares like an int
env      ::= (symbol range hint)* fact* relation*   relation: assumed by the hint, with the user's line
"""

from absint.symbolic.binding import bind_sizes, bound_symbols, size_reader
from absint.symbolic.floats import FloatNode, SizeFloat, Term, make_float
from absint.symbolic.polynomial import Polynomial, from_dim
from absint.symbolic.shape_env import ShapeEnv, SymbolRecord
from absint.symbolic.size import Size, dim_of, hint_of, is_symbolic, make_size, unwrap

__all__ = [
    "FloatNode",
    "Polynomial",
    "ShapeEnv",
    "Size",
    "SizeFloat",
    "SymbolRecord",
    "Term",
    "bind_sizes",
    "bound_symbols",
    "dim_of",
    "from_dim",
    "hint_of",
    "is_symbolic",
    "make_float",
    "make_size",
    "size_reader",
    "unwrap",
]
