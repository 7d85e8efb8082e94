"""The page of `diff`: two lines with the answer, what surrounds the runs, then rung by rung."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomdoctor.records.earlier_runs import DiffAnswer, DiffSide, QuantityChange, RungDiff
from oomdoctor.records.report import Report
from oomdoctor.render.answers.diff_headline import (
    amount,
    by_importance,
    changed,
    headline,
    outcomes,
    signed,
    uncertainty,
)
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Look, Note, Section
from oomdoctor.render.formats.csv_rows import named, record_rows
from oomdoctor.render.words import card_name, counted
from oomdoctor.units import DASH, format_bytes

_SHOWN = 20  # rungs without --verbose
_QUIET = ("same", "within")
_PEAKS = ("peak_device_bytes", "peak_reserved_bytes", "peak_allocated_bytes")

_CSV = (
    *named(("key", "label", "label_after", "outcome_before", "outcome_after"), "0."),
    *named(("evidence_before", "evidence_after", "verdict"), "0."),
    *named(("quantity", "before", "after", "difference", "relative", "uncertainty"), "1."),
    ("quantity_verdict", "1.verdict"),
    *named(("at_micro_batch",), "1."),
)


def diff_sections(report: Report, look: Look) -> list[Section]:
    """The headline, the two runs, then the rungs that changed, the most important first."""
    return [] if report.diff is None else _answer(report.diff, look.verbose, look.plus_minus)


def _answer(diff: DiffAnswer, verbose: bool, plus_minus: str) -> list[Section]:
    first, second = headline(diff, plus_minus)
    sections = [Section("", (Note(first, "strong"), Note(second, "normal"), _facts(diff)))]
    shown = [one for one in diff.rungs if verbose or one.verdict not in _QUIET]
    if not verbose:
        shown = shown[:_SHOWN]
    blocks: list[Block] = []
    if shown:
        blocks.append(_grid(shown, diff, plus_minus))
    rest = len(diff.rungs) - len(shown)
    if rest:
        what = "without a change that matters" if shown or diff.verdict in _QUIET else ""
        blocks.append(Note(f"{counted(rest, 'rung')} {what}; --verbose shows all.".strip()))
    for labels, side in ((diff.only_before, "before"), (diff.only_after, "after")):
        if labels:
            blocks.append(Note(f"Only {side}: {', '.join(labels)}.", "normal"))
    return [*sections, Section("", tuple(blocks))] if blocks else sections


def _facts(diff: DiffAnswer) -> Facts:
    pairs = [("Before", _side(diff.before)), ("After", _side(diff.after))]
    for name, changes in (("Environment", diff.environment), ("Settings", diff.settings)):
        if changes:
            pairs.append((name, ", ".join(changed(one) for one in by_importance(changes))))
    pairs += [("Note" if number == 0 else "", note) for number, note in enumerate(diff.notes)]
    return Facts(tuple(pairs))


def _side(side: DiffSide) -> str:
    device = f" on {card_name(side.device)}" if side.device else ""
    found = f", {side.evidence}" if side.evidence else ""
    return f"{side.name}: {side.command} of {side.model or DASH}{device}{found}"


def _grid(rungs: list[RungDiff], diff: DiffAnswer, plus_minus: str) -> Grid:
    columns = (
        Column("rung"),
        Column("verdict"),
        Column("outcome", 1, tone=True),
        Column("peak", 2, right=True, detail="peak {}"),
        Column("change", 1, right=True, detail="{}"),
        Column(plus_minus, 4, right=True, detail=f"uncertainty {plus_minus}{{}}"),
        Column("largest", 2, right=True, detail="largest {}"),
        Column("GPUs", 2, right=True, detail="{} GPUs"),
        Column("micro-batch", 5, right=True, detail="micro-batch {}"),
        Column("tokens/s", 3, right=True, detail="{} tokens/s"),
        Column("change", 3, right=True, detail="{} tokens/s"),
        Column(plus_minus, 6, right=True, detail=f"spread {plus_minus}{{}}"),
        Column("why", 7, detail="{}", wraps=True),
    )
    return Grid(columns, tuple(_row(one) for one in rungs))


def _row(rung: RungDiff) -> tuple[str, ...]:
    named = {one.quantity: one for one in rung.quantities}
    peaks = [named[name] for name in _PEAKS if name in named]
    peak = next((one for one in peaks if one.verdict == rung.verdict), next(iter(peaks), None))
    speed = named.get("tokens_per_s")
    label = rung.label if rung.label == rung.label_after else f"{rung.label} / {rung.label_after}"
    return (
        label,
        rung.verdict,
        outcomes(rung),
        _both(peak),
        signed(peak) if peak is not None and peak.difference else "",
        uncertainty(peak) if peak is not None and peak.difference else "",
        _both(named.get("largest_value")),
        _both(named.get("fewest_gpus")),
        _sizes(rung),
        "" if speed is None or speed.after is None else _both(speed),
        f"{speed.relative:+.1%}" if speed is not None and speed.relative else "",
        uncertainty(speed) if speed is not None and speed.difference else "",
        _why(rung),
    )


def _both(one: QuantityChange | None) -> str:
    if one is None:
        return ""
    before, after = amount(one, one.before), amount(one, one.after)
    if before == after:
        return before
    at = f" at {one.at_micro_batch}" if one.at_micro_batch else ""
    return f"{before} -> {after}{at}"


def _sizes(rung: RungDiff) -> str:
    for name in ("max_micro_batch_size", "micro_batch_size"):
        for one in rung.quantities:
            if one.quantity == name:
                return f"{amount(one, one.before)} -> {amount(one, one.after)}"
    return ""


def _why(rung: RungDiff) -> str:
    """The reason of a failure, or the categories that changed most at the peak."""
    if rung.verdict in _QUIET:
        return ""
    if rung.reason and rung.outcome_before != rung.outcome_after and not rung.missed_by_bytes:
        return rung.reason
    parts = []
    for one in sorted(rung.categories, key=lambda c: -abs(c.after_bytes - c.before_bytes))[:3]:
        size = one.after_bytes - one.before_bytes
        parts.append(f"{one.category} {'+' if size > 0 else ''}{format_bytes(size)}")
    return ", ".join(parts)


def diff_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows; a rung without numbers has one row."""
    rungs = report.diff.rungs if report.diff is not None else ()
    return record_rows(_CSV, ((rung, one) for rung in rungs for one in rung.quantities or (None,)))
