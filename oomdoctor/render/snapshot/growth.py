"""What grows, on the page of a snapshot: how fast, by which line, what it looks like."""

from __future__ import annotations

from oomdoctor.records.facts.growth import GROWTH
from oomdoctor.records.inside.snapshot import SnapshotGrowth
from oomdoctor.render.snapshot.lines import at_line
from oomdoctor.units import format_bytes

_SHOWN_CALLS = 2


def growth_facts(grown: SnapshotGrowth) -> list[tuple[str, str]]:
    """The rows about one growth."""
    facts = [("Grows", f"{_how_fast(grown)}{at_line(grown.where)}")]
    calls = [at_line(call).removeprefix(", ") for call in grown.called_from if call != grown.where]
    if calls:
        facts.append(("Called from", ", ".join(calls[:_SHOWN_CALLS])))
    found = GROWTH[grown.kind]
    facts.append(("Looks like", f"{found.looks_like} ({grown.confidence} confidence)"))
    facts.append(("What helps", found.remedy))
    if grown.full_at_step is not None:
        facts.append(("Full", f"in {grown.unit} {grown.full_at_step:,} if it goes on like this"))
    return facts


def _how_fast(grown: SnapshotGrowth) -> str:
    each = format_bytes(grown.bytes_per_step)
    if grown.unit == "failure":
        times = "one caught failure" if grown.steps == 1 else f"each of {grown.steps} failures"
        return f"{each} stays after {times}"
    if grown.kind == "fragmentation":
        return f"{each} more is reserved, but not allocated, per {grown.unit}"
    units = {"step": "steps", "pass": "passes"}[grown.unit]
    since = "" if grown.since_step <= 2 else f" since {grown.unit} {grown.since_step}"
    return f"{each} per {grown.unit} over {grown.steps:,} {units}{since}, never freed"
