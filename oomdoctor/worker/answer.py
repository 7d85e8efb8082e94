"""Turn a job into a reply, also if something fails."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from oomdoctor.explain.reading.parse import parse_oom
from oomdoctor.records.job.result import Failure, ProbeJob, Reply
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError


def answer(job: ProbeJob, progress: PhaseFile, folder: Path) -> Reply:
    """Run the job: in this process, or in one for each of its ranks with files in `folder`."""
    if job.config.sharding == "none" or job.mode not in ("measure", "record"):
        return answer_here(job, progress)
    if job.alone:
        from oomdoctor.worker.ranks.alone import answer_alone

        return answer_alone(job, progress, answer_here)
    from oomdoctor.worker.ranks.run_ranks import answer_ranks

    try:
        return answer_ranks(job, progress, folder, answer_here)
    except UnsupportedError as error:
        return Reply(status="unsupported", reason=str(error))
    except MemoryError as error:
        return Reply(status="host_oom", reason=str(error))


def answer_here(job: ProbeJob, progress: PhaseFile) -> Reply:
    """Run the job in this process. An exception becomes a reply; its traceback goes to stderr."""
    try:
        if job.mode == "inspect":
            from oomdoctor.worker.training.inspection import inspect_model

            return Reply(status="inspected", inspection=inspect_model(job))
        if job.mode == "simulate":
            from oomdoctor.worker.simulating.simulate import simulate

            return Reply(status="predicted", predictions=simulate(job, progress))
        if job.mode == "lengths":
            from oomdoctor.worker.dataset.counting import count_lengths

            return Reply(status="counted", lengths=count_lengths(job, progress))
        if job.mode == "calibrate":
            from oomdoctor.worker.calibrating.calibrate import calibrate

            return Reply(status="calibrated", times=calibrate(job, progress))
        if job.mode == "record":
            from oomdoctor.worker.measuring.record import record

            record(job, progress)
            return Reply(status="recorded")
        from oomdoctor.worker.measuring.measure import measure

        return Reply(status="measured", measurement=measure(job, progress))
    except UnsupportedError as error:
        return Reply(status="unsupported", reason=str(error))
    except Exception as error:  # noqa: BLE001  (a rung can fail in any way)
        traceback.print_exc(file=sys.stderr)
        return _failure_reply(error, job, progress.training_phase())


def _failure_reply(error: Exception, job: ProbeJob, phase: str) -> Reply:
    message = str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        return Reply(status="host_oom", reason=f"host memory ran out in {phase}: {message}")
    event = parse_oom(message, phase)
    if event is None:
        code = type(error).__name__
        failure = Failure(code=code, message=message.strip(), last_phase=phase)
        return Reply(status="failed", failure=failure)
    if event.dialect == "cpu_allocator" and job.device_type == "cuda":
        return Reply(status="host_oom", oom=event, reason=f"host memory ran out in {phase}")
    return Reply(status="oom", oom=event)
