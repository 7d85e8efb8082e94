"""Which of the stored runs are meant and which are over a limit; deletes these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from oomdoctor.records.report.earlier_runs import StoredRun
from oomdoctor.system.environment import runs_limit
from oomdoctor.system.store.run_list import remove, remove_leftovers, stored_runs
from oomdoctor.units import parse_age, parse_size

# A run of another machine that shares the folder may go on; its lock cannot be seen from here.
_STILL_FRESH_S = 3600


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs are meant; None for any. `model` is a part of its name, or of a command line."""

    model: str | None = None
    command: str | None = None
    since: datetime | None = None

    @property
    def all(self) -> bool:
        """Whether every run is meant."""
        return self == Wanted()


@dataclass(frozen=True, slots=True)
class Limits:
    """How many runs to keep, how old they may be, and how large in all; all of it holds at once."""

    keep: float = math.inf
    older_than_s: float = math.inf
    max_bytes: float = math.inf


def parse_limits(text: str) -> Limits:
    """The limits in a text such as `200`, `30d`, `5GiB` or `200,30d`.

    Raises:
        ValueError: a part is not a number of runs, an age or a size, or two are of one kind.
    """
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.isascii() and part.isdigit():
            kind, value = "keep", float(part)
        else:
            try:
                kind, value = "older_than_s", parse_age(part)
            except ValueError:
                kind, value = "max_bytes", float(parse_size(part))
        if kind in given:
            raise ValueError(f"{text!r} has two limits of the same kind")
        given[kind] = value
    if not given:
        raise ValueError("write a number of runs, an age such as 30d, or a size such as 5GiB")
    return Limits(**given)


def chosen(runs: Iterable[StoredRun], wanted: Wanted) -> Iterator[StoredRun]:
    """The runs that are meant, in the same order."""
    for run in runs:
        names = " ".join(filter(None, (run.model, *run.command_line))).lower()
        if wanted.model is not None and wanted.model.lower() not in names:
            continue
        if wanted.command is not None and run.command != wanted.command:
            continue
        if wanted.since is not None:
            started = _time(run.started_at)
            if started is None or started < wanted.since:
                continue
        yield run


def over_limit(runs: Sequence[StoredRun], limits: Limits, now: datetime) -> tuple[StoredRun, ...]:
    """The runs to delete, oldest first; `runs` are given latest first.

    Never one that is going on, that may be going on elsewhere, or that is no run of ours.
    """
    too_many: list[StoredRun] = []
    total = sum(run.size_bytes for run in runs)
    for place, run in reversed(list(enumerate(runs))):
        began = _time(run.started_at)
        age_s = (now - began).total_seconds() if began is not None else 0.0
        over = place >= limits.keep or age_s > limits.older_than_s or total > limits.max_bytes
        if over and kept_because(run, now) is None:
            too_many.append(run)
            total -= run.size_bytes
    return tuple(too_many)


def kept_because(run: StoredRun, now: datetime) -> str | None:
    """Why a run is never deleted; None if it may be."""
    if run.status == "foreign":
        return "not a run of oomdoctor"
    if run.status == "running":
        return "still running"
    changed = _time(run.changed_at)
    unfinished = run.status in ("interrupted", "unfinished")
    if unfinished and changed is not None and (now - changed).total_seconds() < _STILL_FRESH_S:
        return "without a final report, and changed within the last hour"
    return None


def _time(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return moment if moment is None or moment.tzinfo is not None else None


def prune(
    runs: Sequence[StoredRun],
) -> tuple[tuple[StoredRun, ...], tuple[tuple[StoredRun, str], ...]]:
    """Delete these runs, oldest first, and what an interrupted deletion left behind.

    Returns what was deleted, and what was not, each with the reason.
    """
    remove_leftovers()
    removed = [(run, remove(run)) for run in runs]
    deleted = tuple(run for run, why in removed if why is None)
    return deleted, tuple((run, why) for run, why in removed if why is not None)


def keep_within_limit(latest: str) -> str | None:
    """Apply OOMDOCTOR_RUNS_LIMIT after a run of the name `latest`, which always stays.

    Returns what to tell the user: what was deleted, or why the limit is ignored; None for nothing.
    """
    text = runs_limit()
    if text is None:
        return None
    try:
        limits = parse_limits(text)
    except ValueError as error:
        return f"warning: OOMDOCTOR_RUNS_LIMIT is ignored: {error}"
    over = over_limit(tuple(stored_runs()), limits, datetime.now(UTC))
    deleted, _ = prune([run for run in over if run.name != latest])
    if not deleted:
        return None
    names = "1 old run" if len(deleted) == 1 else f"{len(deleted)} old runs"
    return f"deleted {names}: OOMDOCTOR_RUNS_LIMIT is {text}"
