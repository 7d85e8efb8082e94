"""How fast memory grows from step to step, robust against single outliers."""

from __future__ import annotations

from oomdoctor.records.diagnosis import MemorySample


def growth_per_step(samples: tuple[MemorySample, ...]) -> float | None:
    """Bytes per step as the median of pairwise slopes (Theil-Sen); None with fewer than four steps.

    One outlier, such as a long batch or an evaluation, does not count as a leak.
    """
    points = [(s.step, s.used_bytes) for s in samples if s.step is not None]
    if len({step for step, _ in points}) < 4:
        points = list(enumerate(s.used_bytes for s in samples))
    if len(points) < 4:
        return None
    points = points[:: max(1, len(points) // 64)]
    slopes = sorted(
        (b[1] - a[1]) / (b[0] - a[0])
        for i, a in enumerate(points)
        for b in points[i + 1 :]
        if b[0] != a[0]
    )
    return slopes[len(slopes) // 2] if slopes else None
