"""Guards: conditions as data, compiled to the C evaluator, printed as Python, explained in words.

guard    ::= TypeIs | IdentityIs | Equals | TensorIs | LengthIs | KeysAre | HasKey
           | HasAttribute | SameObject | Distinct | GlobalState | Relation       (stagewire.capture)
program  ::= compile_guards(guards, frame_view)      run in C by the frame hook
sentence ::= explain(program, frame_view)            "n was 3 and is 4 (read at m.py:7)"
"""

from bytecap._evalframe import GuardProgram
from bytecap.errors import GuardDoesNotHold, GuardError
from bytecap.guards.compile import compile_guards, with_relations
from bytecap.guards.explain import explain, print_guards
from bytecap.guards.kinds import print_guard
from bytecap.guards.printing import print_source

__all__ = [
    "GuardDoesNotHold", "GuardError", "GuardProgram", "compile_guards", "explain", "print_guard", "print_guards",
    "print_source", "with_relations",
]  # fmt: skip
