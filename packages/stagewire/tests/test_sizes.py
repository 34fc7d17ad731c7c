"""Symbolic sizes in estimates, and divisions that hold for every value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stagewire.expr import Dim, evaluate, symbol
from stagewire.sizes import TYPICAL, divide, divides, estimate

N, M = symbol("n"), symbol("m")
HALF = (N + 1) // 2
SIZES = st.sampled_from((1, 2, 6, 12, -4, N, M, N * 2, N * M * 4, N + 1, (N + 1) * M, N // 2, (N // 2) * 3, HALF,
                         HALF * HALF * M, (N - 3) // 2, (N - 3) // 2 * HALF))  # fmt: skip
VALUES = st.fixed_dictionaries({"n": st.integers(1, 9), "m": st.integers(1, 9)})


def test_an_estimate_takes_each_symbol_for_the_same() -> None:
    assert (estimate(7), estimate(N * M), estimate(N // 2 + 1)) == (7, TYPICAL**2, TYPICAL // 2 + 1)


@given(SIZES, SIZES, VALUES)
def test_what_is_seen_holds_for_all_values(dividend: Dim, divisor: Dim, values: dict[str, int]) -> None:
    a, b = evaluate(dividend, values), evaluate(divisor, values)
    quotient, rest = divide(dividend, divisor)
    assert evaluate(quotient, values) * b + evaluate(rest, values) == a
    if divides(divisor, dividend):
        assert (a == 0) if b == 0 else a % b == 0


def test_what_is_seen() -> None:
    assert divides(N, N * M)
    assert divides(4, N * M * 12)
    assert divides(N + 1, (N + 1) * M)
    assert divides(N // 2, N // 2)
    assert divides(N // 2 * M, (N // 2) * (N // 2) * M * 3)
    assert not divides(N // 2, N)
    assert not divides(4, N)
    assert not divides(N, N + 1)
    assert not divides(0, 4)
