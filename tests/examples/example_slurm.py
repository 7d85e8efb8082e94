"""Answers about many Slurm jobs to render. Every number here is invented; none was measured."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from example_parts import config, result

from oomdoctor.records.report.report import Report, bare_report
from oomdoctor.records.report.triage import GatheredJob, Triage, TriagedJob, TriageGroup
from oomdoctor.units import GIB, MIB

_STARTED = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)


def gathered_report() -> Report:
    """Two GPU types: one job measured, one was canceled; a third found that nothing fits."""
    fits = result(
        "lora-r16+ckpt",
        config().with_micro_batch(2),
        micro_batch_size=2,
        gradient_accumulation_steps=8,
        peak_allocated_bytes=17 * GIB,
        peak_reserved_bytes=18 * GIB,
        tokens_per_s=5310.0,
    )
    missed = result("full-bf16", config(), outcome="oom", reason="needs at least 60 GiB")
    jobs = (
        GatheredJob("a100", "41", "ok", None, "NVIDIA A100-SXM4-80GB", 78 * GIB, (fits, missed)),
        GatheredJob("l4", "42", "no", None, "NVIDIA L4", 22 * GIB, (missed,)),
        GatheredJob(
            "h100", "43", "no report",
            "no memory failure found: a person or a script canceled the job", None, None, (),
        ),
    )  # fmt: skip
    return replace(bare_report("show", "ok", 0, _STARTED, 0.25), gathered=jobs)


_HOST = TriagedJob(
    "70", "/home/me/slurm-70.out", "oom", "host", "host memory", "host_memory", "high", None,
    "the job exceeded the host memory that it requested from the scheduler", None,
    "Request more host memory", "#SBATCH --mem=SIZE  # it requested 100 MiB",
    job="70", name="train", user="ada", partition="gpu", state="OUT_OF_MEMORY", exit_code="0:125",
    requested_bytes=100 * MIB,
)  # fmt: skip
_GPU = replace(
    _HOST, source="71", log="/home/me/slurm-71.out", resource="gpu", reason="logits",
    cause="logits", phase="loss", why="it failed in the loss", where="/home/me/train.py:40",
    remedy="Compute the loss in chunks (fused linear cross-entropy)",
    line="TrainingArguments(use_liger_kernel=True)", job="71", state="FAILED", exit_code="1:0",
)  # fmt: skip
_TIME = replace(
    _HOST, source="72", outcome="other", resource="none", reason="time limit", cause=None,
    why="the job reached its time limit", remedy=None, line=None, job="72", user="bob",
    state="TIMEOUT", exit_code="0:0",
)  # fmt: skip
_SILENT = replace(
    _TIME, source="73", outcome="unknown", reason="exit code 7", why="the job failed with exit "
    "code 7", job="73", state="FAILED", exit_code="7:0",
)  # fmt: skip


def triage_report() -> Report:
    """Four jobs since yesterday: two ran out of memory."""
    found = Triage("yesterday", None, (_HOST, _GPU, _TIME, _SILENT), (), 2, 1, 1, 0)
    report = bare_report("triage", "ok", 0, _STARTED, 1.5)
    return replace(report, triage=found, next_commands=("oomdoctor explain 70",))


def triage_by_user_report() -> Report:
    """The same by user."""
    base = triage_report()
    assert base.triage is not None
    groups = (
        TriageGroup("ada", 2, 2, 0, 0, ("host memory", "logits"), "Request more host memory"),
        TriageGroup("bob", 2, 0, 1, 1, ("time limit", "exit code 7"), None),
    )
    return replace(base, triage=replace(base.triage, by="user", groups=groups))


SLURM = {
    "gathered": gathered_report,
    "triage": triage_report,
    "triage-by-user": triage_by_user_report,
}
