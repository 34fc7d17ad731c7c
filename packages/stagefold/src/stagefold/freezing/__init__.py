"""`options={"freeze": True}`: what depends on weights alone is computed once, and convolutions get packed weights.

    frozen  ::= prepare main            two Grad documents
    prepare : weights -> folded         runs again when a weight has changed
    main    : inputs, folded -> results

`split` cuts a program in two, `fold` rewrites convolutions before, `call` compiles both and runs them.
"""

from stagefold.freezing.call import FrozenCall as FrozenCall
from stagefold.freezing.call import Programs as Programs
from stagefold.freezing.call import frozen_programs as frozen_programs
from stagefold.freezing.split import Frozen as Frozen
from stagefold.freezing.split import freeze as freeze
