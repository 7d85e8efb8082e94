"""What a row says in words beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.records.planned.plan import CardPick
from oomdoctor.records.report import Report
from oomdoctor.records.result import ProbeResult
from oomdoctor.units import DASH, format_bytes, format_percent

_NEAR = "borderline: "


def fit_notes(result: ProbeResult, *, planned: bool) -> list[str]:
    """The notes of a rung that fits; `planned` where every row is predicted."""
    mixed = result.evidence == "predicted" and not planned
    notes = ["predicted, not measured"] if mixed else []
    if result.max_micro_batch_size not in (None, result.micro_batch_size):
        notes.append(f"largest micro-batch {result.max_micro_batch_size}")
    if result.mfu is not None and result.mfu <= 1 and not planned:
        notes.append(f"MFU {format_percent(result.mfu)}")
    if result.attention_kernel is not None:
        notes.append(f"attention {result.attention_kernel}")
    measured = result.measurement
    if measured is not None:
        if measured.managed_bytes:
            notes.append(f"paged states {format_bytes(measured.managed_bytes)}")
        if measured.allocation_retries:
            notes.append(f"{measured.allocation_retries} allocation retries")
        if measured.skipped_optimizer_steps:
            notes.append(f"{measured.skipped_optimizer_steps} steps skipped by the gradient scaler")
        if measured.peak_device_bytes is None and result.peak_rss_bytes is not None:
            notes.append(f"process RSS {format_bytes(result.peak_rss_bytes)}")
    return [*notes, *result.notes]


def own_data_note(report: Report, rungs: Sequence[ProbeResult | CardPick]) -> str:
    """What "your data" stands for, and what is assumed about its rows."""
    own = next((r.training_time for r in rungs if r.training_time is not None), None)
    if own is None or report.request is None:
        return ""
    times = "epoch" if own.epochs == 1 else "epochs"
    text = f"Your data: {own.rows:,} rows x {own.epochs:g} {times}, {own.steps:,} optimizer steps"
    lengths = report.request.lengths
    if lengths is None:
        return f"{text}. Each row counts as {report.request.sequence_length:,} tokens."
    if lengths.packed_tokens is not None:
        return f"{text}. Rows are packed to {lengths.packed_tokens:,} tokens."
    return f"{text}. Each micro-batch is padded to its longest row; rows are drawn at random."


def shared_notes(notes: Sequence[Sequence[str]]) -> list[str]:
    """The notes that all of several rows have; they are said once, below the table."""
    if len(notes) < 2:
        return []
    return [note for note in notes[0] if all(note in others for others in notes)]


def without_borderline(result: ProbeResult, notes: Sequence[str]) -> tuple[list[str], str]:
    """The notes of a row, and apart from them why it is borderline; empty if it is not."""
    near = next((note for note in notes if result.borderline and note.startswith(_NEAR)), "")
    return [note for note in notes if note != near], near.removeprefix(_NEAR)


def predicted_need(result: ProbeResult, usable_bytes: int | None) -> int | None:
    """The predicted peak of a rung that ran out of device memory; None if the peak is measured.

    A prediction that the rung would fit was wrong, so it says nothing about the need.
    """
    expected = result.predicted.deciding_peak_bytes() if result.predicted is not None else None
    if result.measurement is not None or result.outcome != "oom":
        return None
    return expected if expected is not None and usable_bytes and expected > usable_bytes else None


def needs(result: ProbeResult, usable_bytes: int | None) -> str:
    """The peak, which is known only if the step ran or was simulated."""
    expected, measured = predicted_need(result, usable_bytes), result.measurement
    if expected is not None:
        return f"~{format_bytes(expected)}"
    return "" if measured is None else format_bytes(measured.deciding_peak_bytes())


def short_by(result: ProbeResult, usable_bytes: int | None) -> str:
    """A failed request is only a lower bound: the step needed more after it."""
    missed, expected = result.missed_by_bytes, predicted_need(result, usable_bytes)
    if expected is not None and usable_bytes is not None:
        short = expected - usable_bytes
        if missed is None or short >= missed:
            return f"~{format_bytes(short)}"
    least = "" if result.measurement is not None else "at least "
    return DASH if missed is None else f"{least}{format_bytes(missed)}"


def miss_notes(result: ProbeResult, *, planned: bool) -> list[str]:
    """The notes of a rung that did not fit; the reason only where the columns do not give it.

    A plan runs engines of several GPUs on a card with room for them, so that says nothing.
    """
    numbers = result.measurement is not None or result.oom is not None
    if result.missed_by_bytes is None or not numbers:
        return [*filter(None, [result.reason]), *result.notes]
    with_room = planned and result.config.sharding != "none"
    ran = result.measurement is not None and result.evidence != "predicted" and not with_room
    return [*(["ran, but left too little headroom"] if ran else []), *result.notes]


def why_not_run(result: ProbeResult) -> str:
    """Why a rung was not measured or simulated, and how much memory it is short of if known."""
    parts = [result.reason] if result.reason else []
    failure = result.failure
    if failure is not None:
        told = failure.message in (result.reason or "")
        if not told and (failure.code != "not_reached" or not result.reason):
            parts.append(failure.message)
        said = " ".join(parts)
        for word, value in (
            ("phase", failure.last_phase),
            ("signal", failure.signal),
            ("exit code", str(failure.exit_code) if failure.exit_code else None),
        ):
            if value and value not in said:
                parts.append(f"{word} {value}")
    missed = result.missed_by_bytes
    if missed is not None and format_bytes(missed) not in (result.reason or ""):
        parts.append(f"short by at least {format_bytes(missed)}")
    return "; ".join(parts)
