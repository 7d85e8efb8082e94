"""The row of a rung in the report, from its attempts."""

from __future__ import annotations

from oomdoctor.analysis.memory.host import HostMemory, host_memory, is_known
from oomdoctor.analysis.search.from_prediction import open_sizes
from oomdoctor.analysis.search.ladder import Context, SkipRung, fixed_size
from oomdoctor.analysis.search.micro_batch import MAX_TRIES, Sample, chosen, sample_of, untried
from oomdoctor.analysis.speed_verdict import speed_of, speed_state
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.job.measurement import Measurement, OomEvent
from oomdoctor.records.job.result import (
    OUTCOME_WORDS,
    Attempt,
    Evidence,
    Failure,
    Outcome,
    ProbeResult,
    Try,
)
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.units import format_bytes

# Fields of a row that are those of its measurement, None without one.
_MEASURED = (
    *("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "peak_rss_bytes"),
    *("breakdown", "trainable_parameters", "attention_kernel"),
)
_BEFORE_THE_STEP = ("init", "load")
NOT_REACHED = Failure("not_reached", "the survey ended before this configuration was tried")


def fits(measurement: Measurement, usable_bytes: int) -> tuple[Outcome, str | None]:
    """Whether a rung that ran also leaves the headroom; the reason if it does not."""
    peak = measurement.deciding_peak_bytes()
    if peak <= usable_bytes:
        return "fits", None
    return "oom", (
        f"it ran, but its peak of {format_bytes(peak)} exceeds the usable "
        f"{format_bytes(usable_bytes)} by {format_bytes(peak - usable_bytes)}"
    )


def conclude(
    rung: Rung,
    attempts: tuple[Attempt, ...],
    skip: SkipRung | None,
    context: Context,
    request: SurveyRequest,
    evidence: Evidence = "measured",
) -> ProbeResult:
    """The row of a rung: the `chosen` size among those that fit, or why there is none.

    If nothing fits, the row shows the smallest size that was tried. A rung without a try is
    "skipped", by `skip` or because the survey ended (failure code "not_reached").
    """
    samples = tuple(sample_of(attempt) for attempt in attempts)
    fitting = [s for s in samples if s.surely_fits] or [s for s in samples if s.outcome == "fits"]
    best = chosen(samples)
    shown = attempts[samples.index(best)] if best is not None else None
    size = best.micro_batch_size if best is not None else fixed_size(rung.config, context)
    config = rung.config if size is None else rung.config.with_micro_batch(size)
    measured = shown.measurement if shown is not None else None
    oom = shown.oom if shown is not None else None
    missed = skip.missed_by_bytes if skip is not None else None
    if shown is not None:
        exactly = missed_by(shown, context.usable_bytes) or missed
        missed = exactly if shown.outcome == "oom" else None
    speed = speed_of(measured if fitting else None, config, context, request)
    host = _host(config, measured, context, evidence)
    return ProbeResult(
        key=rung.config.key(),
        label=rung.label,
        config=config,
        outcome=shown.outcome if shown is not None else "skipped",
        evidence=evidence,
        micro_batch_size=size,
        gradient_accumulation_steps=None if size is None else config.accumulation_steps(),
        effective_batch_size=config.effective_batch_size,
        sequence_length=config.sequence_length,
        **{name: getattr(measured, name, None) for name in _MEASURED},
        peak_phase=measured.peak_phase if measured else oom.phase if oom else None,
        phases=measured.phases if measured else {},
        **speed.figures,
        max_micro_batch_size=max((s.micro_batch_size for s in fitting), default=None),
        fastest_micro_batch_size=size if fitting else None,
        missed_by_bytes=missed,
        measurement=measured,
        tries=tuple(_try(*tried, context) for tried in zip(samples, attempts, strict=True)),
        predicted=None,
        oom=oom,
        failure=shown.failure if shown is not None else None if skip is not None else NOT_REACHED,
        reason=_reason(shown) if shown else skip.reason if skip else NOT_REACHED.message,
        notes=(measured.notes if measured else ())
        + speed.notes
        + ((host.text(),) if host and config.offload != "none" else ())
        + _notes(samples, attempts, rung, context)
        + ((shown.borderline,) if shown is not None and shown.borderline is not None else ()),
        elapsed_s=sum(attempt.elapsed_s for attempt in attempts),
        speed_state=speed.state,
        cached_at=shown.cached_at if shown is not None else None,
        training_time=speed.training_time,
        ranks=measured.ranks if measured else (),
        host_peak_bytes=host.peak_bytes if host else measured.host_peak_bytes if measured else None,
        borderline=shown is not None and shown.borderline is not None,
    )


def _host(
    config: TrainConfig, measured: Measurement | None, context: Context, evidence: Evidence
) -> HostMemory | None:
    """The predicted host memory of a node; None if it was measured, not known or of no interest.

    Where one rank on an emulated GPU stood for all, it was not measured.
    """
    if measured is None or context.counts is None or not is_known(config):
        return None
    stood_for_all = config.world_size > 1 and measured.host_peak_bytes is None
    if evidence == "measured" or (evidence == "emulated" and not stood_for_all):
        return None
    return host_memory(config, context.counts, measured.trainable_parameters)


def missed_by(attempt: Attempt, usable_bytes: int) -> int | None:
    """The memory an attempt was short by, or a lower bound on it; None if unknown.

    A step that ran or was simulated gives it exactly. A step that failed gives only the failed
    request: what it asked for beyond the free memory, or beyond the cap of the allocator. A request
    that failed before the first step says nothing, because most memory was still to be requested.
    """
    if attempt.measurement is not None:
        excess = attempt.measurement.deciding_peak_bytes() - usable_bytes
        return excess if excess > 0 else None
    oom = attempt.oom
    if oom is None or oom.requested_bytes is None or oom.phase in _BEFORE_THE_STEP:
        return None
    held = (oom.allocated_bytes, oom.reserved_unallocated_bytes)
    short = []
    if oom.free_bytes is not None:
        short.append(oom.requested_bytes - oom.free_bytes)
    if oom.allowed_bytes is not None and held[0] is not None and held[1] is not None:
        short.append(oom.requested_bytes + held[0] + held[1] - oom.allowed_bytes)
    most = max(short, default=0)
    return most if most > 0 else None


def _try(sample: Sample, attempt: Attempt, context: Context) -> Try:
    """A try for the report; a speed that is not believable is left out."""
    state = speed_state(attempt.measurement, attempt.config, context)
    return Try(
        sample.micro_batch_size,
        sample.outcome,
        sample.peak_bytes,
        None if state == "not_believable" else sample.tokens_per_s,
        _reason(attempt),
        _is_lower_bound(attempt),
        sample.borderline,
    )


def _is_lower_bound(attempt: Attempt) -> bool:
    """Whether only the tensors were counted, because the step was simulated without a replay."""
    measured = attempt.measurement
    if measured is None or measured.overhead_bytes is None:
        return False
    return measured.peak_reserved_bytes is None


def _reason(attempt: Attempt) -> str | None:
    if attempt.outcome == "fits" or attempt.reason is not None:
        return attempt.reason
    if attempt.oom is not None:
        return _oom_sentence(attempt.oom)
    return attempt.failure.message if attempt.failure is not None else None


def _oom_sentence(oom: OomEvent) -> str:
    """Without the size of the request that failed: the step needs far more after it."""
    text = f"ran out of memory in phase {oom.phase}"
    if oom.allowed_bytes is not None and oom.allocated_bytes is not None:
        used, allowed = format_bytes(oom.allocated_bytes), format_bytes(oom.allowed_bytes)
        return f"{text}, with {used} of the allowed {allowed} in use"
    return text if oom.free_bytes is None else f"{text}, with {format_bytes(oom.free_bytes)} free"


def _notes(
    samples: tuple[Sample, ...], attempts: tuple[Attempt, ...], rung: Rung, context: Context
) -> tuple[str, ...]:
    """What the search of a rung that fits left open."""
    if not any(sample.surely_fits for sample in samples):
        return ()
    notes = [
        f"micro-batch size {sample.micro_batch_size}: {OUTCOME_WORDS[sample.outcome]} "
        f"({_reason(attempt)})"
        for sample, attempt in zip(samples, attempts, strict=True)
        if sample.outcome not in ("fits", "oom")
    ]
    if fixed_size(rung.config, context) is not None:
        return tuple(notes)
    effective, usable = rung.config.rank_batch_size(), context.usable_bytes
    prediction = context.predictions.get(rung.config.key())
    unknown = untried(effective, samples, usable)
    if prediction is not None and prediction.peaks:
        unknown = open_sizes(effective, samples, usable, prediction)
    if unknown and not notes:
        spent = f" after {MAX_TRIES} tries" if len(samples) >= MAX_TRIES else ""
        sizes = ", ".join(map(str, unknown))
        notes.append(f"the search ended{spent}; untried larger sizes that may fit: {sizes}")
    return tuple(notes)
