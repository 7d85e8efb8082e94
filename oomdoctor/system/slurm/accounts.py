"""What Slurm says about one job: each time that it ran, and how that ended, in sentences.

A job that is requeued runs more than once under the same id, and has one account for each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomdoctor.system.slurm.records import JobRecord
from oomdoctor.units import format_bytes

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
# Slurm's words for the end of a run after which the job starts again.
_AGAIN = ("REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")


@dataclass(frozen=True, slots=True)
class Account:
    """One run of a job. `head` is the job, with the largest peak of its steps.

    `steps` are those that ended differently from the job, for example if a script continued after
    one was killed.
    """

    head: JobRecord
    steps: tuple[JobRecord, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """The account as lines of a log."""
        return tuple(record.line() for record in (self.head, *self.steps))


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, or that it has not, if its output shows no failure; and what to do then."""

    what: str
    todo: str | None


def accounts(records: list[JobRecord]) -> tuple[Account, ...]:
    """The runs of one job, oldest first; never empty. sacct is preferred to scontrol.

    A job that waits to start again is known to scontrol only, and is the last one.
    """
    rows = [record for record in records if record.teller == "sacct"]
    live = [record for record in records if record.teller == "scontrol"]
    if not rows:
        return tuple(_account([record]) for record in live[-1:])
    runs: list[list[JobRecord]] = []
    for record in rows:
        if not runs or not record.is_step:
            runs.append([])
        runs[-1].append(record)
    told = [_account(run) for run in runs]
    if live and live[-1].word in _WAITING and told[-1].head.word in _AGAIN:
        told.append(_account(live[-1:]))
    return tuple(told)


def deciding(told: tuple[Account, ...]) -> Account:
    """The run to explain: the last one that ended, or the last one if none has."""
    ended = [account for account in told if not account.head.alive]
    return ended[-1] if ended else told[-1]


def summary(head: JobRecord) -> str:
    """One sentence about a job, for the user."""
    text = f"job {head.id}"
    text += f" of {head.user}" if head.user else ""
    text += f" on {head.nodes}" if head.nodes else ""
    text += f": {head.state or 'in an unknown state'}"
    text += f" after {head.elapsed}" if head.elapsed and head.word not in _WAITING else ""
    limit = head.time_limit or ""  # not a time if it names another limit: Partition_Limit
    text += f" of {limit}" if head.elapsed and limit[:1].isdigit() else ""
    text += f", exit code {head.exit_code}" if head.exit_code and not head.alive else ""
    memory = []
    if head.peak_bytes:
        memory.append(f"{format_bytes(head.peak_bytes)} in the highest sample of a task")
    if head.requested_bytes:
        memory.append(f"{format_bytes(head.requested_bytes)} requested")
    return text + (f"; host memory: {', '.join(memory)}" if memory else "")


def earlier(told: tuple[Account, ...]) -> str | None:
    """One sentence about the runs before the last; None if there was only one."""
    runs = [account.head for account in told[:-1]]
    if not runs:
        return None
    ends = "; ".join(
        f"{run.state}{f' on {run.nodes}' if run.nodes else ''}"
        f"{f' after {run.elapsed}' if run.elapsed else ''}"
        for run in runs
    )
    return f"it was requeued and ran before: {ends}"


def end_of(head: JobRecord) -> JobEnd | None:
    """What to say of a job whose output shows no failure; None for an unknown state."""
    if head.word in _WAITING:
        return JobEnd("the job has not started", f"squeue --start -j {head.id} says when it may")
    if head.alive:
        return JobEnd("the job is still running", "explain it again when it has ended")
    if head.word == "COMPLETED":
        return JobEnd("the job completed", None)
    if head.word == "FAILED":
        code, _, signal = (head.exit_code or "").partition(":")
        how = f"was ended by signal {signal}" if signal not in ("", "0") else "failed"
        told = f" with exit code {code}" if how == "failed" and code else ""
        return JobEnd(
            f"the job {how}{told}",
            "its output does not say why; write stderr to the same file: leave out #SBATCH --error",
        )
    return None


def _account(records: list[JobRecord]) -> Account:
    head = next((record for record in records if not record.is_step), records[0])
    peak = max((r.peak_bytes for r in records if r.peak_bytes), default=None)
    requested = max((r.requested_bytes for r in records if r.requested_bytes), default=None)
    head = replace(head, peak_bytes=peak, requested_bytes=requested)
    others = tuple(
        record
        for record in records
        if record.is_step
        and record.tells_the_end
        and record.word != "CANCELLED"
        and record.state != head.state
    )
    return Account(head, others)
