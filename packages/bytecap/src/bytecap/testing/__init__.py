"""For tests of the evaluator: CPython itself as the oracle, and generated programs.

check(function, make_arguments)     plain and captured runs give the same outcome
outcome ::= result | exception, arguments as the call left them, printed text
"""

from bytecap.testing.comparison import differences
from bytecap.testing.oracle import Outcome, Report, check, frame_view, observe
from bytecap.testing.programs import Program, Programs

__all__ = ["Outcome", "Program", "Programs", "Report", "check", "differences", "frame_view", "observe"]
