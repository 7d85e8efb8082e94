"""Values that the script read from the emulated device, although no kernel computed them."""

from __future__ import annotations

_MOST_LINES = 200
_counts: dict[tuple[str, int], int] = {}


def note_read(file: str, line: int) -> None:
    """Count a value that was read by this line of the user's code and is not known."""
    place = (file, line)
    if place in _counts or len(_counts) < _MOST_LINES:
        _counts[place] = _counts.get(place, 0) + 1


def unknown_reads() -> list[dict[str, str | int]]:
    """The lines that read unknown values, the most frequent first."""
    found = sorted(_counts.items(), key=lambda item: -item[1])
    return [{"file": file, "line": line, "count": count} for (file, line), count in found]
