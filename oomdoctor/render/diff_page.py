"""The page of `diff`: two lines with the answer, what surrounds the runs, then rung by rung."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomdoctor.records.job.result import OUTCOME_WORDS
from oomdoctor.records.report.earlier_runs import (
    DiffAnswer,
    DiffSide,
    QuantityChange,
    RungDiff,
    ValueChange,
)
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Look, Note, Section
from oomdoctor.render.formats.csv_rows import named, record_rows
from oomdoctor.render.text import one_line
from oomdoctor.render.words import card_name, counted
from oomdoctor.units import DASH, format_bytes, format_count, format_percent, format_rate

QUANTITIES = {
    "peak_allocated_bytes": "allocated peak",
    "peak_reserved_bytes": "reserved peak",
    "peak_device_bytes": "peak",
    "tokens_per_s": "throughput",
    "max_micro_batch_size": "largest micro-batch",
    "micro_batch_size": "micro-batch",
    "largest_value": "largest value",
    "fewest_gpus": "fewest GPUs",
}
_COUNTS = ("max_micro_batch_size", "micro_batch_size", "largest_value", "fewest_gpus")
# What people upgrade, the most telling first.
_FIRST = ("torch", "driver", "transformers", "peft", "bitsandbytes", "accelerate")
_LAST = ("cuda", "python", "oomdoctor")  # the first comes with torch


def headline(diff: DiffAnswer, plus_minus: str) -> tuple[str, str]:
    """Two sentences."""
    return f"{_subject(diff)}: {_consequence(diff)}.", f"{_most(diff, plus_minus)}."


def changed(change: ValueChange) -> str:
    """`torch 2.12.1 -> 2.13.0`."""
    return f"{change.name} {change.before or 'none'} -> {change.after or 'none'}"


def by_importance(changes: tuple[ValueChange, ...]) -> list[ValueChange]:
    """What people upgrade goes first."""
    place = {name: number for number, name in enumerate(_FIRST)}
    place |= {name: len(place) + 1 for name in _LAST}
    return sorted(changes, key=lambda change: place.get(change.name, len(_FIRST)))


def outcome(word: str) -> str:
    """An outcome as people see it."""
    return next((text for name, text in OUTCOME_WORDS.items() if name == word), word)


def outcomes(rung: RungDiff) -> str:
    """`fits`, or `fits -> out of memory, short by 1.20 GiB`."""
    after = "package missing" if rung.lacks_package else outcome(rung.outcome_after)
    both = dict.fromkeys((outcome(rung.outcome_before), after))
    short = rung.missed_by_bytes if rung.outcome_after != "fits" else None
    return " -> ".join(both) + (f", short by {format_bytes(short)}" if short else "")


def amount(change: QuantityChange, value: float | None) -> str:
    """A value of a quantity in its unit."""
    if change.quantity.endswith("_bytes"):
        return format_bytes(None if value is None else int(value))
    if change.quantity == "tokens_per_s":
        return format_rate(value)
    if change.quantity == "largest_value" and value is not None:
        return f"{int(value):,}"
    return format_count(None if value is None else int(value))


def signed(change: QuantityChange) -> str:
    """The difference with its sign, absolute and relative: `+1.20 GiB (+14.8%)`."""
    if change.difference is None:
        return ""
    sign = "+" if change.difference > 0 else "-" if change.difference < 0 else ""
    text = sign + amount(change, abs(change.difference))
    return text if change.relative is None else f"{text} ({change.relative:+.1%})"


def main_quantity(rung: RungDiff) -> QuantityChange | None:
    """The number that tells most about a rung: one with its verdict, memory before speed."""
    order = ("peak_device_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "tokens_per_s")
    ranked = sorted(
        (change for change in rung.quantities if change.difference is not None),
        key=lambda change: (
            change.verdict != rung.verdict,
            order.index(change.quantity) if change.quantity in order else len(order),
        ),
    )
    return next(iter(ranked), None)


def _subject(diff: DiffAnswer) -> str:
    before, after = diff.before, diff.after
    parts = []
    if before.model != after.model:
        parts.append(f"{before.model} -> {after.model}")
    if before.device != after.device:
        names = [card_name(side.device or "no device") for side in (before, after)]
        parts.append(" -> ".join(names))
    if before.evidence != after.evidence:
        parts.append(f"{before.evidence} -> {after.evidence}")
    changes = [*by_importance(diff.environment), *diff.settings]
    room = max(0, 2 - len(parts))
    parts += [changed(change) for change in changes[:room]]
    if len(changes) > room:
        parts.append(f"{len(changes) - room} more changes" if parts else "")
    return ", ".join(filter(None, parts)) or "Same environment and settings"


def _consequence(diff: DiffAnswer) -> str:
    rungs = diff.rungs
    tried = [rung for rung in rungs if rung.verdict != "different"]
    fits = [(rung, rung.outcome_before == "fits", rung.outcome_after == "fits") for rung in tried]
    lost = [rung for rung, before, after in fits if before and not after]
    won = sum(after and not before for _, before, after in fits)
    short = sum(rung.outcome_after in ("oom", "host_oom") for rung in lost)
    counts = [
        (short, "no longer fit", ""),
        (len(lost) - short, "no longer run", ""),
        (won, "fit", " now"),
        (_count(rungs, "peak", "worse"), "need", " more memory"),
        (_count(rungs, "peak", "better"), "need", " less memory"),
        (_count(rungs, "tokens", "worse"), "train", " slower"),
        (_count(rungs, "tokens", "better"), "train", " faster"),
        (_count(rungs, "max_micro", "worse"), "fit", " only a smaller micro-batch"),
        (_count(rungs, "max_micro", "better"), "fit", " a larger micro-batch"),
        (_count(rungs, "largest", "worse"), "allow", " only a smaller value"),
        (_count(rungs, "largest", "better"), "allow", " a larger value"),
        (_count(rungs, "fewest", "worse"), "need", " more GPUs"),
        (_count(rungs, "fewest", "better"), "need", " fewer GPUs"),
        (sum(rung.lacks_package for rung in rungs), "need", " a package that is not installed"),
    ]
    said = [(count, f"{verb}{'s' * (count == 1)}{rest}") for count, verb, rest in counts if count]
    if not rungs:
        return "the runs have no configuration in common"
    if not said:
        return f"no change that matters in {counted(len(rungs), 'configuration')}"
    (first, what), *more = said
    text = f"{diff.verdict}; {first} of {counted(len(rungs), 'configuration')} {what}"
    return ", ".join((text, *(f"{count} {words}" for count, words in more)))


def _count(rungs: tuple[RungDiff, ...], start: str, verdict: str) -> int:
    return sum(
        any(q.quantity.startswith(start) and q.verdict == verdict for q in rung.quantities)
        for rung in rungs
    )


def _most(diff: DiffAnswer, plus_minus: str) -> str:
    if not diff.rungs:
        return "Nothing can be compared"
    rung = diff.rungs[0]
    change = main_quantity(rung)
    text = [f"Most: {rung.label}"]
    if rung.outcome_before != rung.outcome_after:
        text.append(outcomes(rung))
    if change is not None and change.difference:
        at = f" at micro-batch {change.at_micro_batch}" if change.at_micro_batch else ""
        more = "" if change.quantity in _COUNTS else f"{at}, {signed(change)}"
        text.append(f"{QUANTITIES[change.quantity]} {_change(change)}{more}")
        if more and change.verdict == "within":
            text.append(f"within the uncertainty of {plus_minus}{uncertainty(change)}")
    grown = _grown(rung)
    if rung.outcome_before != rung.outcome_after and rung.reason and not rung.missed_by_bytes:
        text.append(one_line(rung.reason))
    if grown and rung.verdict in ("worse", "better"):
        text.append(grown[0])
    if len(text) == 1:
        return f"Every number of {counted(len(diff.rungs), 'configuration')} is the same"
    return f"{text[0]}: {'; '.join(text[1:])}"


def _change(change: QuantityChange) -> str:
    return f"{amount(change, change.before)} -> {amount(change, change.after)}"


def _grown(rung: RungDiff) -> list[str]:
    """The categories at the peak with their signed change, the largest first."""
    changes = {part.category: part.after_bytes - part.before_bytes for part in rung.categories}
    ordered = sorted(changes.items(), key=lambda item: -abs(item[1]))
    return [f"{name} {'+' if size > 0 else ''}{format_bytes(size)}" for name, size in ordered]


def uncertainty(change: QuantityChange) -> str:
    """The uncertainty of a difference; a percentage for speeds."""
    if change.uncertainty is None:
        return ""
    if change.quantity == "tokens_per_s" and change.before:
        return format_percent(change.uncertainty / change.before, 1)
    return amount(change, change.uncertainty)


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
    diff, verbose, plus_minus = report.diff, look.verbose, look.plus_minus
    if diff is None:
        return []
    first, second = headline(diff, plus_minus)
    sections = [Section("", (Note(first, "strong"), Note(second, "normal"), _facts(diff)))]
    shown = [rung for rung in diff.rungs if verbose or rung.verdict not in _QUIET]
    if not verbose:
        shown = shown[:_SHOWN]
    blocks: list[Block] = []
    if shown:
        blocks.append(_grid(shown, diff, plus_minus))
    rest = len(diff.rungs) - len(shown)
    if rest:
        what = "without a change that matters" if shown or diff.verdict in _QUIET else ""
        blocks.append(Note(f"{counted(rest, 'config')} {what}; --verbose shows all.".strip()))
    for labels, side in ((diff.only_before, "before"), (diff.only_after, "after")):
        if labels:
            blocks.append(Note(f"Only {side}: {', '.join(labels)}.", "normal"))
    return [*sections, Section("", tuple(blocks))] if blocks else sections


def _facts(diff: DiffAnswer) -> Facts:
    pairs = [("Before", _side(diff.before)), ("After", _side(diff.after))]
    for name, changes in (("Environment", diff.environment), ("Settings", diff.settings)):
        if changes:
            pairs.append((name, ", ".join(changed(change) for change in by_importance(changes))))
    pairs += [("Note" if number == 0 else "", note) for number, note in enumerate(diff.notes)]
    return Facts(tuple(pairs))


def _side(side: DiffSide) -> str:
    device = f" on {card_name(side.device)}" if side.device else ""
    evidence = f", {side.evidence}" if side.evidence else ""
    return f"{side.name}: {side.command} of {side.model or DASH}{device}{evidence}"


def _grid(rungs: list[RungDiff], diff: DiffAnswer, plus_minus: str) -> Grid:
    columns = (
        Column("config"),
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
    return Grid(columns, tuple(_row(rung) for rung in rungs))


def _row(rung: RungDiff) -> tuple[str, ...]:
    named = {change.quantity: change for change in rung.quantities}
    peaks = [named[name] for name in _PEAKS if name in named]
    peak = next(
        (change for change in peaks if change.verdict == rung.verdict), next(iter(peaks), None)
    )
    speed = named.get("tokens_per_s")
    size = named.get("max_micro_batch_size") or named.get("micro_batch_size")
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
        "" if size is None else _change(size),
        "" if speed is None or speed.after is None else _both(speed),
        f"{speed.relative:+.1%}" if speed is not None and speed.relative else "",
        uncertainty(speed) if speed is not None and speed.difference else "",
        _why(rung),
    )


def _both(change: QuantityChange | None) -> str:
    if change is None:
        return ""
    before, after = amount(change, change.before), amount(change, change.after)
    if before == after:
        return before
    at = f" at {change.at_micro_batch}" if change.at_micro_batch else ""
    return f"{before} -> {after}{at}"


def _why(rung: RungDiff) -> str:
    """The reason of a failure, or the categories that changed most at the peak."""
    if rung.verdict in _QUIET:
        return ""
    if rung.reason and rung.outcome_before != rung.outcome_after and not rung.missed_by_bytes:
        return rung.reason
    return ", ".join(_grown(rung)[:3])


def diff_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows; a rung without numbers has one row."""
    rungs = report.diff.rungs if report.diff is not None else ()
    return record_rows(
        _CSV, ((rung, change) for rung in rungs for change in rung.quantities or (None,))
    )
