"""For tests of this and other stages: comparison of meanings, generated graphs, torch's operator samples.

`conformance` needs nothing more; `strategies` and `opinfo` need the `testing` extra.
"""

from __future__ import annotations

from primops.testing.conformance import check_graphs, check_lowering, random_inputs

__all__ = ["check_graphs", "check_lowering", "random_inputs"]
