"""Bisection between a value that fits and one that does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.analysis.search.largest_value import Bracket, next_value

LENGTHS = range(128, 300_000, 128)


@given(
    st.floats(0.001, 10),
    st.floats(0, 0.001),
    st.floats(0, 3000),
    st.integers(1, 200_000),
    st.integers(0, 3),
)
def test_the_search_finds_the_longest_multiple_that_fits(slope, bend, fixed, longest, tried):
    """A peak that grows as attention does, and a limit that the longest row does not keep to."""

    def peak(tokens: int) -> int:
        return round(fixed + slope * tokens + bend * tokens * tokens)

    usable = peak(longest) - 1
    low = longest * tried // 8
    if peak(low) > usable or usable < 0:
        return
    bracket = Bracket(low, peak(low), longest, peak(longest))
    steps = 0
    while (tokens := next_value(bracket, usable, LENGTHS)) is not None:
        assert bracket.low < tokens < bracket.high
        assert tokens % 128 == 0
        bracket = bracket.narrowed(tokens, peak(tokens) <= usable, peak(tokens))
        steps += 1
    assert steps <= 3 * (longest // 128).bit_length() + 2
    assert peak(bracket.low) <= usable < peak(bracket.high)
    assert bracket.high - bracket.low <= 128 or bracket.low // 128 == (bracket.high - 1) // 128


def test_a_straight_line_is_found_at_once():
    bracket = Bracket(1000, 1000, 100_000, 100_000)
    tokens = next_value(bracket, 51_000, LENGTHS)
    assert tokens == 51_072
    bracket = bracket.narrowed(tokens, False, tokens)
    assert next_value(bracket, 51_000, LENGTHS) == 50_944
    assert next_value(bracket.narrowed(50_944, True, 50_944), 51_000, LENGTHS) is None


def test_after_two_poor_guesses_the_bracket_is_halved():
    bracket = Bracket(0, 0, 128_000, 128_000).narrowed(127_872, False, 127_872)
    assert next_value(bracket, 127_000, LENGTHS) == 127_104
    assert next_value(bracket.narrowed(127_104, False, 127_104), 127_000, LENGTHS) == 63_488


def test_without_sizes_the_bracket_is_halved():
    assert next_value(Bracket(0, None, 1024, None), 1, LENGTHS) == 512
