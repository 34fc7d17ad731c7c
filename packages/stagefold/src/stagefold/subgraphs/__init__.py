"""Captures with unbacked symbols (sizes or numbers that data decides: `x[mask]`, `nonzero()`, `int(tensor)`), and with
control flow (`torch.cond`, `while_loop`, `scan`).

    capture  ::= subgraph*              split where a symbol gets its value, and at control flow
    subgraph ::= plain | compiled       plain: the calls that decide, run by ATen; compiled: everything between them
               | control                functions (subgraphs in turn), run as often as data or sizes say
    compiled subgraph, at a call
             ::= variant(sizes fit)     compiled when it first runs: sizes are symbols, and numbers of its inputs
               | plain                  a size of 0 or 1, or more kinds of sizes than variants

To bytecap it is one graph. Each size is read off the tensor that has it; what a compiled subgraph assumes of sizes and
strides is compared with the tensors of each call, so that data which nobody foresaw makes a call slow, and never wrong.

`cut` makes the subgraphs, `call` runs one after the other, and says which sizes a compiled one is for. `select` takes
branches and loops of few kernels out before, on a GPU.
"""

from stagefold.subgraphs.call import calls_of as calls_of
from stagefold.subgraphs.cut import Subgraph as Subgraph
from stagefold.subgraphs.cut import cut as cut
from stagefold.subgraphs.cut import runs_in_subgraphs as runs_in_subgraphs
from stagefold.subgraphs.select import without_waits as without_waits
