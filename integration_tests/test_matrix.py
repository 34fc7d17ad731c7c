"""Every cell of docs/matrix.md: a capture in front, a back end behind, training against eager."""

from __future__ import annotations

import pytest

from tools import matrix

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("front", "back"), list(matrix.pairs()), ids="-".join)
def test_pair(front: str, back: str) -> None:
    count, sizes = matrix.tried(front, back), len(matrix.FRONTS[front].sizes)
    cell = f" {count} for {sizes} "
    row = next(
        line for line in matrix.PAGE.read_text().splitlines() if line.startswith(f"| {matrix.FRONTS[front].title} |")
    )
    assert row.split("|")[2 + list(matrix.BACKS).index(back)] == cell
