"""Which processes belong to a command: the process itself and those that it started."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path


def family(pid: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """A process and all its descendants; empty if there is no such process."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in proc.glob("[0-9]*"):
        parent = _parent(folder)
        if parent is not None:
            children[parent].append(int(folder.name))
    if not (proc / str(pid)).is_dir():
        return frozenset()
    found, waiting = set(), [pid]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += children[one]
    return frozenset(found)


def _parent(folder: Path) -> int | None:
    try:
        # The name of the command is in brackets, and may hold anything.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, ValueError, IndexError):
        return None
