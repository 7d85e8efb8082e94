"""Merges the reports of one failure, marks its consequences, and decides what the run survived.

A launcher, a scheduler and every rank report the same failure in different words. Here they become
one finding. This module works on incidents and knows nothing about lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from oomdoctor.explain.reading.failures.going_on import Report
from oomdoctor.explain.reading.parse import NO_DIALECT, Dialect
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.report.diagnosis import Incident, Numbers, ReadPhase

_MOST_QUOTES = 6
_MOST_LOOK_ALIKES = 3
_MOST_RUNS = 64
# Of several reports of one kill, the one that knows the limit tells most about it.
_KILLERS = ("slurm", "container", "host_oom_killer")


@dataclass(slots=True)
class Finding:
    """An incident while the log is still being read.

    `reports` has the last report in each run of the text.
    `strong`: the words alone prove a failure.
    """

    incident: Incident
    reports: list[Report]
    dialect: Dialect = NO_DIALECT
    strong: bool = True
    key: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.key = _key(self.incident)

    @property
    def memory(self) -> bool:
        """Whether memory ran out; otherwise it is a look-alike."""
        return self.incident.look_alike is None

    @property
    def kill(self) -> bool:
        """Whether it reports that the system or a launcher saw a process killed."""
        tells_of_others = self.dialect.lived_on or self.dialect.hints_only
        return tells_of_others and self.incident.resource == "host"

    @property
    def bare(self) -> bool:
        """Whether it has no figures, as the title of a thread or a summary."""
        event = self.incident.event
        return all(getattr(event, figure.name) is None for figure in fields(Numbers))


def fold(findings: list[Finding], new: Finding) -> None:
    """Add a finding to the list, or merge it with the one that reports the same failure."""
    old = next((old for old in findings if old.key == new.key), None)
    if old is None:
        findings.append(new)
        return
    had, has = old.incident, new.incident
    better = has if has.frames and not had.frames else had
    placed = next((i for i in (better, had, has) if i.phase != "unknown"), better)
    enough = len(had.lines) >= _MOST_QUOTES
    old.incident = replace(
        had,
        event=_filled(had.event, has.event, placed.phase),
        frames=better.frames,
        phase=placed.phase,
        where=better.where,
        recomputing=better.recomputing,
        lines=had.lines if enough else (*had.lines, *has.lines)[:_MOST_QUOTES],
        exception=had.exception or has.exception,
        rank=had.rank if had.rank is not None else has.rank,
        # Kernel, shell and launcher report one kill in several lines.
        repeats=had.repeats + (not new.kill),
    )
    if old.reports[-1].run == new.reports[-1].run or len(old.reports) == _MOST_RUNS:
        old.reports.pop()
    old.reports += new.reports
    if old.dialect.hints_only:
        old.dialect = new.dialect


def incidents_of(
    findings: list[Finding], went_on: Callable[[Finding, Report], str | None]
) -> tuple[Incident, ...]:
    """The incidents of a log: memory failures, their consequences, then strong look-alikes.

    `went_on` gives the line of the log that shows that the run continued after a report.
    """
    findings = [finding for finding in findings if not _announced(finding, findings)]
    for finding in findings:
        ended = finding.dialect.hints_only and not finding.dialect.announces
        recovery = None if ended else _recovery(finding, findings, went_on)
        survived = recovery is not None
        finding.incident = replace(finding.incident, survived=survived, recovery=recovery)
    # A warning without a consequence is not a failure.
    findings = [f for f in findings if not (f.dialect.hints_only and f.incident.survived)]
    memory = [f for f in findings if f.memory]
    others = [f for f in findings if not f.memory]
    told = [f for f in memory if not f.dialect.hints_only]
    hints = [f for f in memory if f.dialect.hints_only]
    causes = [f for f in others if not f.incident.consequence and not f.incident.survived]
    if hints and not told and causes:
        # The launcher kills the other processes when one fails.
        return tuple(f.incident for f in causes[:_MOST_LOOK_ALIKES])
    if not memory:
        shown = causes or [f for f in others if not f.incident.consequence] or others
        return tuple(f.incident for f in shown[:_MOST_LOOK_ALIKES])
    _mark_consequences(told, hints)
    _mark_titles(told)
    ordered = sorted(memory, key=lambda f: f.incident.consequence)
    strong = [f for f in causes if f.strong]
    return tuple(f.incident for f in (*ordered, *strong[:_MOST_LOOK_ALIKES]))


def with_rank(incidents: tuple[Incident, ...], rank: int | None) -> tuple[Incident, ...]:
    """The incidents, the first that ended the run with the rank that the launcher names.

    Only if no memory failure names its rank.
    """
    memory = [i for i in incidents if i.look_alike is None]
    ended = next((i for i in memory if not (i.survived or i.consequence)), None)
    if rank is None or ended is None or any(i.rank is not None for i in memory):
        return incidents
    return tuple(replace(i, rank=rank) if i is ended else i for i in incidents)


def next_failure(finding: Finding, report: Report, findings: list[Finding]) -> int | None:
    """The line after a report where the same rank reports another memory failure with frames."""
    later = (
        other.incident.line_number
        for other in findings
        if other.memory
        and other.incident.frames
        and other.incident.rank == finding.incident.rank
        and other.incident.line_number > report.last
    )
    return min(later, default=None)


def _announced(finding: Finding, findings: list[Finding]) -> bool:
    """Whether a finding is only the warning before a message about the same memory."""
    if not finding.dialect.announces:
        return False
    later = (f for f in findings if f.memory and not f.dialect.announces)
    return any(
        f.incident.resource == finding.incident.resource
        and f.incident.line_number >= finding.incident.line_number
        for f in later
    )


def _recovery(
    finding: Finding, findings: list[Finding], went_on: Callable[[Finding, Report], str | None]
) -> str | None:
    """The line that shows that the last run survived a failure, if each run that reports it did."""
    line = _outlived(finding, findings)
    if line is not None:
        return line
    for report in finding.reports:
        line = went_on(finding, report)
        if line is None:
            return None
    return line


def _outlived(finding: Finding, findings: list[Finding]) -> str | None:
    """The later message that shows that the process survived this memory failure.

    The report of the system stands apart from the output of the run, often under its own heading.
    """
    if not finding.memory or finding.dialect.lived_on:
        return None
    later = (f.incident for f in findings if f.dialect.lived_on)
    return next((i.lines[0] for i in later if i.line_number > finding.reports[-1].last), None)


def _mark_consequences(told: list[Finding], hints: list[Finding]) -> None:
    """Mark the findings that another failure in the log explains."""
    kills = [f for f in told if f.kill and f.incident.event.dialect in _KILLERS]
    reported = any(f.dialect.lived_on for f in told)
    for finding in told:
        if finding.incident.event.dialect == "dataloader_worker" and reported:
            finding.incident = replace(finding.incident, consequence=True)
    if kills:
        kills.sort(key=lambda f: _KILLERS.index(f.incident.event.dialect))
        _fold_kills(kills[0], [*kills[1:], *(f for f in hints if f.kill)])
    # Several hints at one kill: keep the first.
    for finding in hints if told else hints[1:]:
        finding.incident = replace(finding.incident, consequence=True)


def _fold_kills(first: Finding, others: list[Finding]) -> None:
    """Fill in what the other reports of one kill know, and mark them as consequences."""
    for other in others:
        had, has = first.incident, other.incident
        told = had if had.phase != "unknown" else has
        event = _filled(had.event, has.event, told.phase)
        first.incident = replace(had, event=event, phase=told.phase, where=told.where)
        other.incident = replace(has, consequence=True)


def _mark_titles(told: list[Finding]) -> None:
    """Mark titles and summaries of a message whose figures stand elsewhere in the text.

    They have no place: no traceback, or the one that the message ends.
    """
    full = [f.incident for f in told if f.incident.resource == "gpu" and not f.bare]
    for finding in told:
        has = finding.incident
        if has.resource != "gpu" or not finding.bare or has.survived:
            continue
        if any(
            has.rank in (None, titled.rank)
            and has.frames in ((), titled.frames)
            and not titled.survived
            for titled in full
        ):
            finding.incident = replace(has, consequence=True)


def _key(incident: Incident) -> tuple[object, ...]:
    """What two reports of the same failure have in common."""
    event = incident.event
    if event.dialect == "not_oom":
        return event.dialect, incident.look_alike, incident.exception
    if incident.resource != "gpu":
        return event.dialect, incident.resource, event.requested_bytes
    if event.requested_bytes is None and event.capacity_bytes is None:
        return event.dialect, incident.rank
    return (
        event.dialect,
        incident.rank,
        event.requested_bytes,
        event.capacity_bytes,
        event.free_bytes,
        event.allocated_bytes,
    )


def _filled(had: OomEvent, has: OomEvent, phase: ReadPhase) -> OomEvent:
    process = had.process_bytes if had.process_bytes is not None else has.process_bytes
    allowed = had.allowed_bytes if had.allowed_bytes is not None else has.allowed_bytes
    return replace(had, phase=phase, process_bytes=process, allowed_bytes=allowed)
