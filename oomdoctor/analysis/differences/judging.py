"""Two rows of the same configuration: which of their numbers changed, and whether it matters.

How much two numbers may differ without meaning anything: two measurements of what the allocator
reserves by one of its segments, and of a speed by the spread of both. Two predictions, or one and
an emulated GPU: by the error beside the emulated GPU; how that differs from a real one is common to
both. A prediction and a measurement: by the whole recorded error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from oomdoctor.analysis.differences.rows import PEAKS, Row
from oomdoctor.analysis.fit import PeakErrors
from oomdoctor.records.job.simulation import PeakMetric
from oomdoctor.records.report.earlier_runs import (
    CategoryChange,
    ChangedPart,
    DiffVerdict,
    Quantity,
    QuantityChange,
    RungDiff,
    ValueChange,
    lacks_package,
)

# Memory is reserved in segments of at least this, for requests from 1 MiB on: kLargeBuffer in
# c10/cuda/CUDACachingAllocator. Which requests share one may change from run to run.
SEGMENT = 20 * 1024**2
# What is smaller than this share is not worth a word, whatever is exact.
NOTHING = 0.001


@dataclass(frozen=True, slots=True)
class Sides:
    """What is recorded about predictions like those of the two runs.

    `context_bytes` is how far the assumed CUDA context may be off, if one side is predicted.
    """

    before: PeakErrors
    after: PeakErrors
    context_bytes: int = 0


def peak_uncertainty(before: Row, after: Row, name: str, sides: Sides) -> float | None:
    """The uncertainty of the difference of two peaks, in bytes; None if nothing is recorded."""
    metric: PeakMetric = "allocated" if name == "peak_allocated_bytes" else "reserved"
    kinds = {before.evidence, after.evidence}
    larger = max(before.peaks.get(name) or 0, after.peaks.get(name) or 0)
    if "predicted" not in kinds:
        segment = SEGMENT if metric == "reserved" else 0
        if len(kinds) == 1:
            return float(segment)
        real = sides.after.of_emulation()
        return None if real is None else real * larger + segment
    shares = []
    for row, errors in ((before, sides.before), (after, sides.after)):
        if row.evidence == "predicted":
            if row.method is None:
                return None
            # An emulated peak is what the error of the simulation is taken from.
            share = errors.share if "measured" in kinds else errors.of_simulation
            shares.append(share(row.method, metric))
    shares_told = [share for share in shares if share is not None]
    if len(shares_told) < len(shares):
        return None
    real = "measured" in kinds and name == "peak_device_bytes"
    context = sides.context_bytes if real else 0
    return max(shares_told) * larger + context


def speed_uncertainty(before: Row, after: Row) -> float | None:
    """The uncertainty of the difference of two speeds, in tokens per second.

    The spreads of two measurements add up. Two predictions share most of their error, so the larger
    one counts.
    """
    if before.tokens_per_s is None or after.tokens_per_s is None:
        return None
    if before.spread is None or after.spread is None:
        return None
    both = (before.spread * before.tokens_per_s, after.spread * after.tokens_per_s)
    return max(both) if before.evidence == after.evidence == "predicted" else sum(both)


_NOT_TRIED = "skipped"
_LESS_IS_BETTER: tuple[Quantity, ...] = (*PEAKS, "fewest_gpus")
_BY_IMPORTANCE: tuple[DiffVerdict, ...] = ("worse", "better", "different", "within", "same")


def most_important(verdicts: Iterable[DiffVerdict]) -> DiffVerdict:
    """The verdict that counts among several."""
    return min(verdicts, key=_BY_IMPORTANCE.index, default="same")


def judged(before: Row, after: Row, sides: Sides) -> RungDiff:
    """What changed from one row to the other."""
    quantities = tuple(_quantities(before, after, sides))
    return RungDiff(
        key=after.key,
        label=before.label,
        label_after=after.label,
        outcome_before=before.outcome,
        outcome_after=after.outcome,
        evidence_before=before.evidence,
        evidence_after=after.evidence,
        missed_by_bytes=after.missed_by_bytes,
        reason=after.reason if after.outcome != "fits" else None,
        verdict=_verdict(before, after, quantities),
        settings=tuple(changes("setting", before.settings, after.settings)),
        quantities=quantities,
        categories=tuple(_categories(before, after)),
    )


def importance(rung: RungDiff) -> tuple[float, ...]:
    """Sorts rungs: what no longer fits, what fits now, then by how much a number changed."""
    fits = (rung.outcome_before == "fits", rung.outcome_after == "fits")
    first = {(True, False): 0, (False, True): 1}.get(fits, 2)
    order = _BY_IMPORTANCE.index(rung.verdict)
    counted = [q for q in rung.quantities if q.verdict == rung.verdict] or rung.quantities
    most = max((abs(q.relative) for q in counted if q.relative is not None), default=0.0)
    return (first if rung.verdict != "different" else 2, order, -most)


def _verdict(before: Row, after: Row, quantities: tuple[QuantityChange, ...]) -> DiffVerdict:
    if before.outcome != after.outcome:
        untried = any(lacks_package(row.outcome, row.reason) for row in (before, after))
        if untried or _NOT_TRIED in (before.outcome, after.outcome):
            return "different"
        if before.outcome == "fits":
            return "worse"
        return "better" if after.outcome == "fits" else "different"
    # A number that only one side has, such as the speed beside an emulated GPU, decides nothing.
    on_both = (quantity for quantity in quantities if quantity.difference is not None)
    return most_important(quantity.verdict for quantity in on_both)


def _quantities(before: Row, after: Row, sides: Sides) -> Iterator[QuantityChange]:
    yield from _peaks(before, after, sides)
    largest = (before.largest_value, after.largest_value)
    if None not in largest:
        yield _change("largest_value", *largest, 0.0)
    gpus = (before.fewest_gpus, after.fewest_gpus)
    if None not in gpus:
        yield _change("fewest_gpus", *gpus, 0.0)
    both = (before.tokens_per_s, after.tokens_per_s)
    if both != (None, None):
        yield _change("tokens_per_s", *both, speed_uncertainty(before, after))
    if not before.outcome == after.outcome == "fits":
        return  # the size of a rung that does not fit says nothing
    most = (before.max_micro_batch_size, after.max_micro_batch_size)
    if None not in most and most[0] != most[1]:
        yield _change("max_micro_batch_size", *most, 0.0)
    chosen = (before.micro_batch_size, after.micro_batch_size)
    if None not in chosen and chosen[0] != chosen[1]:
        # It is the fastest size, so neither a larger nor a smaller one is better.
        yield _change("micro_batch_size", *chosen, None)


def _peaks(before: Row, after: Row, sides: Sides) -> Iterator[QuantityChange]:
    if before.micro_batch_size == after.micro_batch_size:
        for name in PEAKS:
            both = before.peaks.get(name), after.peaks.get(name)
            if both != (None, None):
                uncertainty = peak_uncertainty(before, after, name, sides)
                yield _change(name, *both, uncertainty)
        return
    size = max(set(before.tries) & set(after.tries), default=None)  # the largest that fits in both
    deciding = before.deciding()
    if size is not None and deciding is not None and deciding == after.deciding():
        uncertainty = peak_uncertainty(before, after, deciding, sides)
        both = before.tries[size], after.tries[size]
        yield _change(deciding, *both, uncertainty, at=size)


def _change(
    quantity: Quantity,
    before: float | None,
    after: float | None,
    uncertainty: float | None,
    at: int | None = None,
) -> QuantityChange:
    if before is None or after is None:
        return QuantityChange(quantity, before, after, None, None, uncertainty, "different", at)
    difference = after - before
    relative = difference / before if before else None
    if difference == 0:
        verdict: DiffVerdict = "same"
    elif uncertainty is None:
        verdict = "different"
    elif abs(difference) <= max(uncertainty, NOTHING * abs(before)):
        verdict = "within"
    else:
        verdict = "better" if (difference < 0) == (quantity in _LESS_IS_BETTER) else "worse"
    return QuantityChange(quantity, before, after, difference, relative, uncertainty, verdict, at)


def changes(
    part: ChangedPart, before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[ValueChange]:
    """What two sides say differently of a part."""
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield ValueChange(part, name, _word(old), _word(new))


def _categories(before: Row, after: Row) -> Iterator[CategoryChange]:
    if before.micro_batch_size != after.micro_batch_size:
        return
    for name, size in before.categories.items():
        other = after.categories.get(name)
        if other is not None and other != size:
            yield CategoryChange(name, size, other)


def _word(value: object) -> str | None:
    return None if value is None else str(value)
