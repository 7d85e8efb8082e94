"""The answers about several logs as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomdoctor.records.diagnosis import Diagnosis
from oomdoctor.records.facts.outcomes import RESOURCE_WORDS
from oomdoctor.render.blocks import Column, Grid, Note, Section
from oomdoctor.render.words import counted
from oomdoctor.units import format_bytes


def table_section(groups: Mapping[str, Sequence[Diagnosis]]) -> Section:
    """One row a log, by its first diagnosis: the failure that ended it."""
    firsts = [found[0] for found in groups.values()]
    failed = sum(one.is_oom and not one.survived for one in firsts)
    count = f"{failed} of {counted(len(firsts), 'log')} ended with an out-of-memory error"
    columns = (
        Column("log"),
        Column("outcome", tone=True),
        Column("phase", 3, detail="in {}"),
        Column("rank", 6, right=True, detail="rank {}"),
        Column("requested", 2, right=True, detail="requested {}"),
        Column("free", 5, right=True, detail="{} free"),
        Column("cause", 1, detail="cause {}"),
        Column("first remedy", 4, detail="try: {}", wraps=True),
    )
    return Section("", (Note(count, "strong"), Grid(columns, tuple(map(_row, firsts)))))


def _row(found: Diagnosis) -> tuple[str, ...]:
    cause = found.causes[0] if found.causes else None
    named = f"{cause.cause.replace('_', ' ')} ({cause.confidence})" if cause else None
    return (
        found.source,
        _outcome(found),
        found.phase if found.is_oom and found.phase != "unknown" else "",
        "" if found.rank is None else str(found.rank),
        _size(found.numbers.requested_bytes),
        _size(found.numbers.free_bytes),
        named or (found.look_alike or "").replace("_", " "),
        found.remedies[0].change if found.remedies else found.short_answer or "",
    )


def _size(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _outcome(found: Diagnosis) -> str:
    if not found.is_oom:
        # What the scheduler says, if there is nothing else to say.
        end = found.verdict.partition(": ")[2]
        return "other error" if found.look_alike else end or "no memory failure"
    return RESOURCE_WORDS[found.resource] + (", survived" if found.survived else "")
