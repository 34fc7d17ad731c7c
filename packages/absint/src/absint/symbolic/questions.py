"""What is asked of floats whose value differs from call to call, and becomes a condition on each call.

Nothing is known of such a float but what was asked of it: an environment has one `Questions`, which answers by the
hints and writes the question down, or refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absint.errors import FixedNumber
from stagewire.polynomial import Polynomial

if TYPE_CHECKING:
    from absint.symbolic.floats import SizeFloat, Term


class Questions:
    """Knows nothing and assumes nothing: whatever needs a float symbol is a `FixedNumber`.

    some_number: what C++ is given for a double that data decides (types of results do not depend on it); None: nothing.
    """

    some_number: float | None = None

    def define(self, step: SizeFloat) -> SizeFloat:
        """A step on numbers of which one has no hint: the number that is computed with from here on."""
        return step

    def fix(self, name: str) -> float:
        """The value of a float symbol, from now on for all calls."""
        raise FixedNumber(name)

    def can_ask(self, term: Term) -> bool:
        """Whether a guard can ask a question about this number."""
        return False

    def ask(self, term: Term, function: Callable[..., Any], *arguments: float) -> Any:
        """What a C function (`float.__lt__`) of the number gives, from now on for all calls; None where no guard can
        ask that."""
        return None

    def whole(self, term: Term, function: Callable[..., Any]) -> Polynomial | None:
        """The int that a C function (`math.floor`) of the number gives, as a size of its own; None where it is none."""
        return None
