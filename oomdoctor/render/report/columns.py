"""The columns of the tables of rungs, one row each: of those that fit, and of the others.

A new column is a row here and a test. A column in which no rung has anything to say is left out;
one in which all rungs say the same is left out too if `shared` says how to put it below the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oomdoctor.records.result import OUTCOME_WORDS, ProbeResult
from oomdoctor.render.blocks import Column, Grid
from oomdoctor.render.report.notes import miss_notes, needs, short_by, why_not_run
from oomdoctor.render.words import batch, speed
from oomdoctor.units import DASH, format_bytes, format_percent, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class Row:
    """A result, and what the report says about all of them.

    `place` is its place in the ranking, `notes` what is only said of this row, `tokens` the amount
    for which the report gives the time. `planned` is whether the
    report predicts.
    """

    result: ProbeResult
    plus_minus: str
    place: int | None = None
    usable_bytes: int | None = None
    fastest_tokens_per_s: float | None = None
    tokens: str = "N"
    notes: tuple[str, ...] = ()
    planned: bool = False


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column: its heading, and what it shows of a row.

    The other fields are those of `Column`. `{tokens}` stands for the amount of tokens. Text for
    `shared` replaces the column where all of several rows show the same.
    """

    heading: str
    show: Callable[[Row], str]
    importance: int = 0
    right: bool = False
    detail: str = "{}"
    tone: bool = False
    wraps: bool = False
    spills: bool = True
    shared: str | None = None


def _is_shared(row: Row) -> bool:
    """Whether several GPUs share the training; then a peak is that of one of them."""
    return row.result.config.world_size > 1


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


def _tokens_time(row: Row) -> str:
    """Left out where the table has the time for the user's own data."""
    own = row.result.training_time
    return format_seconds(row.result.tokens_time_s) if own is None else ""


def _failed_in(row: Row) -> str:
    oom = row.result.oom
    return (oom.phase if oom is not None else row.result.peak_phase) or DASH


_RUNG = ResultColumn("rung", lambda row: row.result.label)
_OUTCOME = ResultColumn(
    "outcome", lambda row: OUTCOME_WORDS[row.result.outcome], importance=1, tone=True
)
FITS = (
    ResultColumn("#", lambda row: str(row.place or DASH), right=True),
    _RUNG,
    ResultColumn("batch", lambda row: batch(row.result), 3, right=True, detail="batch {}"),
    ResultColumn(
        "peak",
        lambda row: "" if _is_shared(row) else format_bytes(row.result.deciding_peak_bytes()),
        1,
        right=True,
        detail="peak {}",
    ),
    ResultColumn(
        "peak/GPU",
        lambda row: format_bytes(row.result.deciding_peak_bytes()) if _is_shared(row) else "",
        1,
        right=True,
        detail="peak {} on each GPU",
    ),
    ResultColumn("of usable", _of_usable, 2, detail="{} of usable", tone=True),
    ResultColumn(
        "peak phase",
        lambda row: row.result.peak_phase or DASH,
        6,
        detail="peak in {}",
        shared="peak in {}",
    ),
    ResultColumn(
        "tokens/s",
        lambda row: speed(row.result, row.plus_minus),
        1,
        right=True,
        detail="{} tokens/s",
    ),
    ResultColumn("vs fastest", _relative_speed, 5, right=True, spills=False),
    ResultColumn("your data", _own_data, 4, right=True, detail="your data in {}"),
    ResultColumn(
        "{tokens} tokens",
        _tokens_time,
        4,
        right=True,
        spills=False,
    ),
    ResultColumn("notes", lambda row: "; ".join(row.notes), 7, wraps=True),
)
UNRANKED = tuple(
    column
    for column in FITS
    if column.heading not in ("#", "vs fastest", "your data", "{tokens} tokens")
)
DID_NOT_FIT = (
    _RUNG,
    _OUTCOME,
    ResultColumn("batch", lambda row: batch(row.result), 4, right=True, detail="batch {}"),
    ResultColumn(
        "needs", lambda row: needs(row.result, row.usable_bytes), 2, right=True, detail="needs {}"
    ),
    ResultColumn(
        "short by",
        lambda row: short_by(row.result, row.usable_bytes),
        1,
        right=True,
        detail="short by {}",
    ),
    ResultColumn("phase", _failed_in, 3, detail="in {}"),
    ResultColumn(
        "notes", lambda row: "; ".join(miss_notes(row.result, planned=row.planned)), 5, wraps=True
    ),
)
NOT_RUN = (
    _RUNG,
    _OUTCOME,
    ResultColumn("reason", lambda row: why_not_run(row.result), 2, wraps=True),
)


def table(columns: Sequence[ResultColumn], rows: Sequence[Row]) -> tuple[Grid, list[str]]:
    """The rows under the columns, and what is the same for all of several rows."""
    cells = [[column.show(row) for row in rows] for column in columns]
    kept, same = [], []
    for column, shown in zip(columns, cells, strict=True):
        once = len(rows) > 1 and len(set(shown)) == 1 and shown[0] not in ("", DASH)
        if column.shared is not None and once:
            same.append(column.shared.format(shown[0]))
        else:
            kept.append((column, shown))
    tokens = rows[0].tokens
    grid = Grid(
        tuple(_drawn(column, tokens) for column, _ in kept),
        tuple(tuple(shown[i] for _, shown in kept) for i in range(len(rows))),
    )
    return grid, same


def _drawn(column: ResultColumn, tokens: str) -> Column:
    return Column(
        column.heading.replace("{tokens}", tokens),
        column.importance,
        column.right,
        column.detail.replace("{tokens}", tokens),
        column.tone,
        column.wraps,
        column.spills,
    )
