"""Graph breaks: how a frame goes on behind an instruction that cannot be captured.

    frame     ::= prefix driver
    prefix    ::= graph call, side effects, state                 replacement code of the frame that broke
    driver    ::= state -> (plain instruction+ segment)* result   a copy of the code, entered where the prefix ended
    segment   ::= a function that starts behind a break           an ordinary frame, captured like any other
    state     ::= target, live variables, stack                   a tuple; `Continue`, where a segment returns it

The frame's replacement ends by handing its state to the driver, which runs the one instruction in its own frame (so
that handlers, `with` blocks and loops around it are the real ones) and then calls the segment that starts behind it.
A segment that breaks in turn returns its state to the driver instead of calling on: loops do not nest. A segment that
cannot be captured runs plain to the end of the function, and its result is the frame's.
"""

from bytecap.breaks.points import Continue, Resumption, Unbound

__all__ = ["Continue", "Resumption", "Unbound"]
