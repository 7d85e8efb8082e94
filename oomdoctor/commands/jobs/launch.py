"""Run one job in its own process, and classify how it ended.

It handles every end: a reply, a kill, a signal, a silent exit, an unreadable reply, a deadline.
Nothing a child does can end the survey.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from oomdoctor.analysis.verdict import fits
from oomdoctor.commands.jobs.host import ChildEnd, WorkerHost
from oomdoctor.explain.reading.parse import parse_oom
from oomdoctor.records.codec import CodecError, dumps, loads
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.result import Attempt, Failure, Outcome, ProbeJob, Reply
from oomdoctor.system.machine.limits import host_limits, oom_kills, tightest
from oomdoctor.system.store.record_files import writing

JOB, REPLY, LOG = "job.json", "reply.json", "log.txt"
LOG_TAIL_LINES = 30
LOG_TAIL_CHARACTERS = 4000
# What a process prints last if it gets no host memory; glibc, C++ and Python.
NO_HOST_MEMORY = (
    "std::bad_alloc",
    "MemoryError",
    "Cannot allocate memory",
    "failed to map segment from shared object",
)


Launched = tuple[Attempt, Reply | None]
"""How a job ended, and its reply if there is one."""


class Stopped(Exception):  # noqa: N818  (not an error: the user or the scheduler asked for it)
    """The survey was told to stop while a job ran."""


def launch(
    host: WorkerHost,
    job: ProbeJob,
    folder: Path,
    *,
    usable_bytes: int | None,
    deadline_s: float,
    stop: Callable[[], bool],
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Launched:
    """Run `job` in `folder`, which keeps job, reply and log, and return how it ended.

    `deadline_s` counts from the start of the child. A measured peak is compared with
    `usable_bytes`. The reply, if there is one, holds the inspection or the prediction.

    Raises:
        Stopped: `stop()` became true; the child is dead.
        OomDoctorError: no worker can be started (exit 5).
    """
    with writing(folder):
        (folder / JOB).write_text(dumps(job))
    seen = ""

    def poll() -> None:
        nonlocal seen
        phase = _last_phase(folder)
        if phase and phase != seen:
            seen = phase
            on_phase(phase)

    kills_before = oom_kills()
    end = host.run(
        folder / JOB, folder / REPLY, folder / LOG, deadline_s=deadline_s, on_poll=poll, stop=stop
    )
    if end.how == "stopped":
        raise Stopped
    reply, fault = _read_reply(folder / REPLY)
    phase, log = _last_phase(folder), log_tail(folder / LOG)
    signal_name = _signal_name(end.status)
    if reply is not None:  # a complete reply counts, however the child ended
        attempt = attempt_of(job, reply, end.elapsed_s, None, usable_bytes, signal_name)
    else:
        silent = end.how == "exited" and signal_name is None
        event = parse_oom(log, phase or "unknown") if silent else None
        killed = oom_kills() > kills_before
        outcome, failure = _why_silent(end, fault, phase, log, deadline_s, killed_for_memory=killed)
        attempt = Attempt(job.config, outcome, None, None, failure, failure.message, end.elapsed_s)
        if event is not None:  # bitsandbytes prints its out-of-memory error and ends the process
            attempt = Attempt(job.config, "oom", None, event, None, None, end.elapsed_s)
    if attempt.failure is not None:
        exit_code = end.status if end.status is not None and end.status >= 0 else None
        failure = replace(
            attempt.failure, exit_code=exit_code, signal=signal_name, last_phase=phase, log_tail=log
        )
        attempt = replace(attempt, failure=failure)
    return _naming_the_limit(replace(attempt, folder=folder.name)), reply


def _why_silent(
    end: ChildEnd,
    reply_fault: str | None,
    phase: str | None,
    log: str,
    deadline_s: float,
    *,
    killed_for_memory: bool,
) -> tuple[Outcome, Failure]:
    """What a child's end means that left no reply which can be read."""
    signal_name, where = _signal_name(end.status), f" in phase {phase}" if phase else ""
    no_memory = any(words in log for words in NO_HOST_MEMORY)
    if end.how == "deadline":
        return "timed_out", Failure("deadline", f"stopped after {deadline_s:.0f} s{where}")
    if end.how == "host_died":
        return "crashed", Failure("host_died", f"the worker host died{where}")
    if signal_name == "SIGKILL" and killed_for_memory:
        message = f"killed{where} because host memory ran out"
        return "host_oom", Failure("host_oom_killed", message)
    if no_memory and signal_name in (None, "SIGABRT"):
        return "host_oom", Failure("host_oom", f"host memory ran out{where}")
    if signal_name:
        message = f"killed by {signal_name}{where}"
        if signal_name == "SIGKILL":
            message += "; unless someone sent it, host memory ran out"
        return "crashed", Failure("signal", message)
    if reply_fault:
        message = f"the reply cannot be read: {reply_fault}"
        return "crashed", Failure("unreadable_reply", message)
    message = f"exited with code {end.status}{where} without a reply"
    return "crashed", Failure("no_reply", message)


def _naming_the_limit(attempt: Attempt) -> Attempt:
    """The attempt; if host memory ran out, with the limit that was probably reached."""
    killed = attempt.failure is not None and attempt.failure.signal == "SIGKILL"
    if attempt.outcome != "host_oom" and not killed:
        return attempt
    # Beyond its addresses a process gets no memory; beyond the memory of a cgroup it is killed.
    limit = tightest("memory" if killed else "addresses", host_limits())
    if limit is None:
        return attempt
    reason = f"{attempt.reason}; {limit.words}"
    if attempt.failure is None:
        return replace(attempt, reason=reason)
    return replace(attempt, reason=reason, failure=replace(attempt.failure, message=reason))


def attempt_of(
    job: ProbeJob,
    reply: Reply,
    elapsed_s: float,
    cached_at: str | None,
    usable_bytes: int | None = None,
    signal_name: str | None = None,
) -> Attempt:
    """The attempt of a reply; `cached_at` is when, if it was kept in an earlier run."""
    outcome: Outcome = "fits"
    reason, failure = None, None
    if reply.status == "measured" and reply.measurement is not None:
        outcome, reason = fits(reply.measurement, usable_bytes or 0)
        if signal_name and reason is None:
            reason = f"the worker was killed by {signal_name} after its reply, which is complete"
    elif reply.status in ("failed", "measured"):  # a measurement that is not there is no fit
        failure = reply.failure or Failure("unknown", "no reason given")
        outcome = "failed"
        reason = f"{failure.code}: {failure.message}".strip().splitlines()[0]
    elif reply.status in ("oom", "host_oom", "unsupported"):
        outcome, reason = reply.status, reply.reason
    measured, oom = reply.measurement, reply.oom
    return Attempt(
        job.config, outcome, measured, oom, failure, reason, elapsed_s, cached_at=cached_at
    )


def log_tail(log: Path) -> str:
    """The last lines of a worker's output, to show."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4 * LOG_TAIL_CHARACTERS))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])[-LOG_TAIL_CHARACTERS:]


def _read_reply(path: Path) -> tuple[Reply | None, str | None]:
    try:
        return loads(Reply, path.read_text()), None
    except FileNotFoundError:
        return None, None
    except (OSError, UnicodeDecodeError, CodecError) as error:
        return None, str(error)


def _last_phase(folder: Path) -> str | None:
    try:
        return (folder / REPLY).with_suffix(".phase").read_text().strip() or None
    except OSError:
        return None


def _signal_name(status: int | None) -> str | None:
    if status is None or status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def on_one_gpu(config: TrainConfig) -> TrainConfig:
    """The configuration to look at a model with, which needs no other GPU."""
    plain = TrainConfig()
    return replace(
        config, sharding="none", world_size=1, offload="none", bucket_elements=plain.bucket_elements
    )
