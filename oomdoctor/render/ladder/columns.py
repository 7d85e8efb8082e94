"""The columns of the tables of rungs, and what a row says in words beside its numbers.

A new column is a row here and a test. A column in which no rung has anything to say is left out;
one in which all rungs say the same is left out too if `_SHARED` says how to put it below the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from oomdoctor.analysis.rent import rent
from oomdoctor.records.job.result import OUTCOME_WORDS, ProbeResult
from oomdoctor.records.report.plan import CardPick
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid, figures, table_of
from oomdoctor.render.words import batch, money, speed
from oomdoctor.units import DASH, format_bytes, format_percent, format_rate, format_seconds

_NEAR = "borderline: "


def fit_notes(result: ProbeResult, *, planned: bool, verbose: bool = True) -> list[str]:
    """The notes of a rung that fits; `planned` where every row is predicted.

    Without `verbose` only what changes the meaning of its numbers.
    """
    mixed = result.evidence == "predicted" and not planned
    notes = ["predicted, not measured"] if mixed else []
    if not verbose:
        return [*notes, *result.notes]
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


def missed_by(result: ProbeResult, usable_bytes: int | None) -> str:
    """`short by 31.6 GiB, needs 45.8 GiB`, as far as it is known."""
    size, short = needs(result, usable_bytes), short_by(result, usable_bytes)
    said = [f"short by {short}"] if short != DASH else []
    return ", ".join([*said, f"needs {size}"] if size else said)


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


@dataclass(frozen=True, slots=True)
class Row:
    """A result, and what the report says about all of them.

    `place` is its place in the ranking, `notes` what is only said of this row, `tokens` the amount
    for which the report gives the time. `planned` is whether the report predicts. `per_hour` is the
    price of a GPU, in `currency`.
    """

    result: ProbeResult
    plus_minus: str
    place: int | None = None
    usable_bytes: int | None = None
    fastest_tokens_per_s: float | None = None
    tokens: str = "N"
    notes: tuple[str, ...] = ()
    planned: bool = False
    per_hour: float | None = None
    currency: str = ""


Cell = tuple[Column, Callable[[Row], str]]
"""A column, and what it shows of a row; `{tokens}` in its texts stands for the amount of tokens."""
_SHARED = {"peak phase": "peak in {}"}
"""What replaces a column where all of several rows show the same."""


def _of_usable(row: Row) -> str:
    word = "borderline" if row.result.borderline else "fits"
    peak = row.result.deciding_peak_bytes()
    if peak is None or not row.usable_bytes:
        return word
    return f"{word}, {format_percent(peak / row.usable_bytes)}"


def _relative_speed(row: Row) -> str:
    rate, fastest = row.result.tokens_per_s, row.fastest_tokens_per_s
    if fastest is None:  # the speeds do not compare
        return ""
    return DASH if rate is None or not fastest else f"{format_rate(rate / fastest)}x"


def _own_data(row: Row) -> str:
    own = row.result.training_time
    return "" if own is None else format_seconds(own.total_s)


def _cost(row: Row, *, own: bool) -> str:
    """The cost of the user's own data, or where there is none of the amount of tokens."""
    result, time = row.result, row.result.training_time
    if row.per_hour is None or own != (time is not None):
        return ""
    seconds = time.total_s if time is not None else result.tokens_time_s
    cost = rent(seconds, row.per_hour, result.config.world_size)
    return DASH if cost is None else f"~{money(cost, row.currency)}"


def _tokens_time(row: Row) -> str:
    """Left out where the table has the time for the user's own data."""
    own = row.result.training_time
    return format_seconds(row.result.tokens_time_s) if own is None else ""


def _peak(row: Row, *, shared: bool) -> str:
    """The peak, in the column of its kind: where several GPUs share the training, it is of one."""
    is_shared = row.result.config.world_size > 1
    return format_bytes(row.result.deciding_peak_bytes()) if is_shared == shared else ""


def _failed_in(row: Row) -> str:
    oom = row.result.oom
    return (oom.phase if oom is not None else row.result.peak_phase) or DASH


_RUNG: Cell = (Column("config"), lambda row: row.result.label)
_OUTCOME: Cell = (Column("outcome", 1, tone=True), lambda row: OUTCOME_WORDS[row.result.outcome])
FITS: tuple[Cell, ...] = (
    (figures("#"), lambda row: str(row.place or DASH)),
    _RUNG,
    (figures("batch", 3), lambda row: batch(row.result)),
    (figures("peak", 1), partial(_peak, shared=False)),
    (figures("peak/GPU", 1, "peak {} on each GPU"), partial(_peak, shared=True)),
    (Column("of usable", 2, detail="{} of usable", tone=True), _of_usable),
    (Column("peak phase", 6, detail="peak in {}"), lambda row: row.result.peak_phase or DASH),
    (figures("tokens/s", 1, "{} tokens/s"), lambda row: speed(row.result, row.plus_minus)),
    (Column("vs fastest", 5, right=True, spills=False), _relative_speed),
    (figures("your data", 4, "your data in {}"), _own_data),
    (figures("your data costs", 3, "your data for {}"), partial(_cost, own=True)),
    (figures("{tokens} tokens cost", 3, "{tokens} tokens for {}"), partial(_cost, own=False)),
    (Column("{tokens} tokens", 4, right=True, spills=False), _tokens_time),
    (Column("notes", 7, wraps=True), lambda row: "; ".join(row.notes)),
)


def without(*names: str) -> tuple[Cell, ...]:
    """The columns of rungs that fit, without some."""
    return tuple(cell for cell in FITS if cell[0].name not in names)


IN_SHORT = without("peak phase", "vs fastest", "{tokens} tokens")
_COSTS = ("your data costs", "{tokens} tokens cost")
UNRANKED = without("#", "vs fastest", "your data", "{tokens} tokens", *_COSTS)
UNRANKED_IN_SHORT = without(
    "#", "vs fastest", "your data", "{tokens} tokens", "peak phase", *_COSTS
)
DID_NOT_FIT: tuple[Cell, ...] = (
    _RUNG,
    _OUTCOME,
    (figures("batch", 4), lambda row: batch(row.result)),
    (figures("needs", 2), lambda row: needs(row.result, row.usable_bytes)),
    (figures("short by", 1), lambda row: short_by(row.result, row.usable_bytes)),
    (Column("phase", 3, detail="in {}"), _failed_in),
    (
        Column("notes", 5, wraps=True),
        lambda row: "; ".join(miss_notes(row.result, planned=row.planned)),
    ),
)
NOT_RUN: tuple[Cell, ...] = (
    _RUNG,
    _OUTCOME,
    (Column("reason", 2, wraps=True), lambda row: why_not_run(row.result)),
)


def table(cells: Sequence[Cell], rows: Sequence[Row]) -> tuple[Grid, list[str]]:
    """The rows under the columns, and what is the same for all of several rows."""
    kept, same = [], []
    for column, show in cells:
        shown = {show(row) for row in rows} if column.name in _SHARED and rows[1:] else set()
        if len(shown) == 1 and not shown & {"", DASH}:
            same.append(_SHARED[column.name].format(*shown))
        else:
            name = column.name.replace("{tokens}", rows[0].tokens)
            kept.append((replace(column, name=name), show))
    return table_of(rows, kept), same
