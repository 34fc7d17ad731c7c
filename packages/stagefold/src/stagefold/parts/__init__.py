"""Programs in which data decides sizes: `x[mask]`, `nonzero()`, `int(tensor)`.

    capture ::= part*                   cut where the data has to be there
    part    ::= plain | compiled        plain: the calls that decide; compiled: everything between them
    compiled part, at a call
            ::= variant(sizes fit)      compiled when it first runs: sizes are symbols, and numbers of its inputs
              | plain                   a size of 0 or 1, or more kinds of sizes than variants

A program of parts is one graph to bytecap. Each size is read off the tensor that has it; what a compiled part assumes
of sizes and strides is compared with the tensors of each call, so that data which nobody foresaw makes a call slow, and
never wrong.

`cut` makes the parts, `part` compiles and chooses variants, `call` runs one after the other.
"""

from stagefold.parts.call import PartsCall as PartsCall
from stagefold.parts.cut import Part as Part
from stagefold.parts.cut import cut as cut
from stagefold.parts.cut import is_decided_by_data as is_decided_by_data
