"""Deletes the runs that are over a limit, on request or after a new run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from oomdoctor.records.history.runs import StoredRun
from oomdoctor.runs.history.choosing import over_limit, parse_limits
from oomdoctor.system.environment import runs_limit
from oomdoctor.system.store.run_list import remove, remove_leftovers
from oomdoctor.system.store.stored import stored_runs


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, and what was not, each with the reason."""

    deleted: tuple[StoredRun, ...]
    refused: tuple[tuple[StoredRun, str], ...]


def prune(runs: Sequence[StoredRun]) -> Pruned:
    """Delete these runs, oldest first, and what an interrupted deletion left behind."""
    remove_leftovers()
    deleted, refused = [], []
    for run in runs:
        why = remove(run)
        if why is None:
            deleted.append(run)
        else:
            refused.append((run, why))
    return Pruned(tuple(deleted), tuple(refused))


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
    found = over_limit(tuple(stored_runs()), limits, datetime.now(UTC))
    done = prune([run for run in found if run.name != latest])
    if not done.deleted:
        return None
    names = "1 old run" if len(done.deleted) == 1 else f"{len(done.deleted)} old runs"
    return f"deleted {names}: OOMDOCTOR_RUNS_LIMIT is {text}"
