"""The limits that follow from the compute capability."""

from __future__ import annotations

import pytest

from oomdoctor.emulator.card import limits


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((6, 0), (2048, 32, 65536, 65536, 49152)),
        ((6, 1), (2048, 32, 65536, 98304, 49152)),
        ((7, 0), (2048, 32, 65536, 98304, 98304)),
        ((7, 5), (1024, 16, 65536, 65536, 65536)),
        ((8, 0), (2048, 32, 65536, 167936, 166912)),
        ((8, 6), (1536, 16, 65536, 102400, 101376)),
        ((8, 9), (1536, 24, 65536, 102400, 101376)),
        ((9, 0), (2048, 32, 65536, 233472, 232448)),
        ((10, 0), (2048, 32, 65536, 233472, 232448)),
        ((10, 3), (2048, 32, 65536, 233472, 232448)),
        ((11, 0), (1536, 24, 65536, 233472, 232448)),
        ((12, 0), (1536, 24, 65536, 102400, 101376)),
        ((12, 1), (1536, 24, 65536, 102400, 101376)),
    ],
)
def test_known_capabilities(capability: tuple[int, int], expected: tuple[int, ...]) -> None:
    assert tuple(limits(capability).values()) == expected


@pytest.mark.parametrize(
    ("unknown", "nearest"), [((7, 2), (7, 0)), ((9, 5), (9, 0)), ((13, 0), (12, 1))]
)
def test_an_unknown_capability_takes_the_nearest_lower_one(
    unknown: tuple[int, int], nearest: tuple[int, int]
) -> None:
    assert limits(unknown) == limits(nearest)


def test_capabilities_below_the_table_are_refused() -> None:
    with pytest.raises(ValueError, match=r"5\.2 is below 6\.0"):
        limits((5, 2))
