"""What a peak of memory consists of, from the bytes of each category."""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.records.facts.categories import BREAKDOWN, OTHER, TABLE
from oomdoctor.records.measurement import Breakdown


def breakdown(parts: Mapping[str, int], peak: int) -> Breakdown:
    """The peak by category; what the allocator holds beyond the parts is "other".

    Those are inputs, temporaries, rounding, blocks that are not split, and workspaces of libraries.
    """
    sizes = dict.fromkeys(BREAKDOWN, 0) | {OTHER: peak - sum(parts.values())}
    for name, size in parts.items():
        sizes[TABLE[name].within or name] += size
    return Breakdown(**{f"{name}_bytes": size for name, size in sizes.items()})
