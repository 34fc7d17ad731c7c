"""Symbolic sizes: what is known of the symbols, and sizes that torch's C++ takes.

size     ::= int | Size(polynomial)                 a torch.SymInt that computes and compares like an int
                                                    (the arithmetic: `stagewire.polynomial`)
env      ::= (symbol range hint)* fact* relation*   relation: assumed by the hint, with the user's line
"""

from absint.symbolic.floats import SizeFloat, Term, create_float, make_float
from absint.symbolic.questions import Questions
from absint.symbolic.shape_env import ShapeEnv, SymbolRecord, from_dim
from absint.symbolic.size import NUMBERS, Size, dim_of, hint_of, is_symbolic, make_size, unwrap

__all__ = [
    "NUMBERS", "Questions", "ShapeEnv", "Size", "SizeFloat", "SymbolRecord", "Term", "create_float", "dim_of",
    "from_dim", "hint_of", "is_symbolic", "make_float", "make_size", "unwrap",
]  # fmt: skip
