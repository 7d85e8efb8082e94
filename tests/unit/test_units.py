"""Sizes as people type them: with a unit, without one, and with the wrong one."""

from __future__ import annotations

import pytest

from oomdoctor.units import GIB, MIB, format_share, parse_size, size_note


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24g", 24 * GIB),
        ("24 GiB", 24 * GIB),
        ("24GB", 24 * 10**9),
        ("24576MiB", 24 * GIB),
        ("24", 24 * GIB),
        ("24.0", 24 * GIB),
        ("0.5", GIB // 2),
        ("25769803776", 24 * GIB),
        ("25769803776B", 24 * GIB),
        ("1000B", 1000),
    ],
)
def test_a_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["24576", "1025", "81920", "24564.5"])
def test_a_number_that_may_be_mib_is_asked_back(text):
    with pytest.raises(ValueError, match=f"{text} what.*{text}MiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "GiB", "24XiB", "-24", "0", "0GiB", "24 25"])
def test_not_a_size(text):
    with pytest.raises(ValueError, match=r"is not a size|above zero"):
        parse_size(text)


def test_a_reading_that_may_surprise_is_noted():
    assert size_note("24") == "24 is read as 24GiB"
    assert size_note("24GB") == "24GB is 22.4 GiB; for a card sold as 24GB, write 24GiB"
    for clear in ("24GiB", "24g", "25769803776", "24576MiB", str(300 * MIB), "nonsense"):
        assert size_note(clear) is None


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (20 * GIB, 23 * GIB, "20.0 of 23.0 GiB"),
        (373 * MIB, 18 * GIB, "373 MiB of 18.0 GiB"),
        (20 * GIB, None, "20.0 GiB"),
    ],
)
def test_a_share_says_its_unit_once(part, whole, text):
    assert format_share(part, whole) == text
