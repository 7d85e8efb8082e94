"""What the emulated device is told about its card."""

from __future__ import annotations

import pytest

from oomdoctor.emulator.card import Card, Devices, described, split_count

CARD = Card("NVIDIA T4", (7, 5), 15_000, 16_000, 300, multiprocessors=40)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8xH100", (8, "H100")),
        ("2 x RTX 4090", (2, "RTX 4090")),
        ("64×80GiB", (64, "80GiB")),
        ("RTX 4090", (1, "RTX 4090")),
        ("80GiB", (1, "80GiB")),
    ],
)
def test_a_count_may_come_first(text: str, expected: tuple[int, str]) -> None:
    assert split_count(text) == expected


@pytest.mark.parametrize("text", ["0xH100", "65xH100"])
def test_a_count_has_limits(text: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 64"):
        split_count(text)


def test_the_description_says_emulated_and_has_every_fact() -> None:
    lines = dict(line.split(" ", 1) for line in described(Devices(CARD, 2)).splitlines())
    assert lines["name"] == "NVIDIA T4 (emulated)"
    assert (lines["major"], lines["minor"], lines["count"]) == ("7", "5", "2")
    assert lines["threads_per_multiprocessor"] == "1024"
    assert lines["multiprocessors"] == "40"
    assert int(lines["l2_bytes"]) > 0  # unknown, so a usual one
    assert lines["total_bytes"] == "15000"
    assert lines["mig"] == "0"


def test_a_name_cannot_add_lines() -> None:
    evil = Card("a\ntotal_bytes 5", (8, 0), 1, 1, 1)
    assert "total_bytes 1\n" in described(Devices(evil))
    assert "\ntotal_bytes 5" not in described(Devices(evil))
