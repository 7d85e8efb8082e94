"""How much two numbers of a rung may differ without meaning anything.

Two measurements: what the allocator reserves may differ by one of its segments, and a speed by the
spread of both. Two predictions, or one and an emulated GPU: the error beside the emulated GPU; how
that differs from a real one is common to both. A prediction and a measurement: the whole recorded
error.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.analysis.differences.rows import Row
from oomdoctor.analysis.peak_uncertainty import PeakErrors
from oomdoctor.records.simulation import PeakMetric

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
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    real = "measured" in kinds and name == "peak_device_bytes"
    context = sides.context_bytes if real else 0
    return max(known) * larger + context


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
