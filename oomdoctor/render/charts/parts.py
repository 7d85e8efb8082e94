"""What the peak of a rung consists of, as parts that add up to the memory that decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.records.inside.categories import CATEGORY_WORDS
from oomdoctor.records.report import Report
from oomdoctor.records.result import ProbeResult
from oomdoctor.render.charts.look import Role
from oomdoctor.render.words import ranked_results

PART_WORDS: dict[Role, str] = {
    "weights": CATEGORY_WORDS["weights"],
    "gradients": CATEGORY_WORDS["gradients"],
    "optimizer": CATEGORY_WORDS["optimizer"],
    "activations": CATEGORY_WORDS["activations"],
    "logits": CATEGORY_WORDS["logits"],
    "other": "other",
    "whole": "tensors",
    "reserved": "cached",
    "context": "CUDA and libraries",
}
"""Each part as people read it, in the order of a bar.

`whole` are tensors of unknown categories, `reserved` is what the allocator holds without using it.
"""


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of a rung. `parts` add up to `total`; `fits` is None if the rung did not run.

    A peak that is only `expected` is a prediction for a rung that ran out of memory.
    """

    key: str
    label: str
    fits: bool
    total: int
    parts: tuple[tuple[Role, int], ...]
    expected: bool = False


def peaks_of(report: Report) -> list[Peak]:
    """The peaks that are known: of the rungs that fit, best first, and then of the others."""
    fitting = ranked_results(report)
    others = [result for result in report.results if result.outcome in ("oom", "host_oom")]
    return [peak for result in (*fitting, *others) if (peak := _peak(result)) is not None]


def parts_in(peaks: Sequence[Peak]) -> list[Role]:
    """The parts that any of the peaks has, in the order of a bar."""
    there = {role for peak in peaks for role, size in peak.parts if size}
    return [role for role in PART_WORDS if role in there]


def _peak(result: ProbeResult) -> Peak | None:
    total, fits = result.deciding_peak_bytes(), result.outcome == "fits"
    if result.measurement is None or result.peak_allocated_bytes is None or total is None:
        expected = result.predicted.deciding_peak_bytes() if result.predicted is not None else None
        if expected is None or fits:
            return None
        return Peak(result.key, result.label, False, expected, (("whole", expected),), True)
    return Peak(result.key, result.label, fits, total, _parts(result, total))


def _parts(result: ProbeResult, total: int) -> tuple[tuple[Role, int], ...]:
    allocated, reserved = result.peak_allocated_bytes or 0, result.peak_reserved_bytes
    parts = result.breakdown
    tensors: tuple[tuple[Role, int], ...] = (("whole", allocated),)
    if parts is not None:
        tensors = (
            ("weights", parts.weights_bytes),
            ("gradients", parts.gradients_bytes),
            ("optimizer", parts.optimizer_bytes),
            ("activations", parts.activations_bytes),
            ("logits", parts.logits_bytes),
            ("other", parts.other_bytes),
        )
    held = allocated if reserved is None else max(reserved, allocated)
    return (*tensors, ("reserved", held - allocated), ("context", max(0, total - held)))
