"""Short paths draw the same lines."""

from __future__ import annotations

import re

import pytest

from oomdoctor.render.charts.drawing import with_short_paths

COMMAND = re.compile(r"([MLHVz])(-?[\d.]+)?(?: (-?[\d.]+))?")


def points(data: str) -> list[tuple[float, float]]:
    x = y = 0.0
    found = []
    for command, one, other in COMMAND.findall(data):
        if command == "H":
            x = float(one)
        elif command == "V":
            y = float(one)
        elif command in "ML":
            x, y = float(one), float(other)
        found.append((x, y))
    return found


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("M 1.04 2\nL 5 2\nL 5 7\nL 5 7\nL 1 3\nz\n", "M1 2H5V7L1 3z"),
        ("M -0.01 -2.25\nL 0 -2.2\n", "M0 -2.2"),
        ("M 0 0\nL 1 0\nM 1 0\nL 1 5", "M0 0H1M1 0V5"),
    ],
)
def test_a_path_is_written_in_few_letters(long: str, short: str) -> None:
    assert with_short_paths(f'<path d="{long}"/>') == f'<path d="{short}"/>'


def test_the_corners_are_the_same() -> None:
    corners = [(float(n * 7 % 13), float(n * 5 % 3)) for n in range(50)]
    data = "\n".join(f"{'L' if n else 'M'} {x} {y}" for n, (x, y) in enumerate(corners))
    drawn = points(with_short_paths(f'<path d="{data}"/>'))
    kept = [one for n, one in enumerate(corners) if not n or one != corners[n - 1]]
    assert drawn == kept


def test_curves_and_texts_are_left_alone() -> None:
    text = '<path d="M 1.234 2 C 1 2 3 4 5 6"/><text>d="M 1.55 2"</text>'
    assert with_short_paths(text) == text
