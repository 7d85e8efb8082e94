"""Devices that do not exist but obey the rules, for the tests of the micro-batch search."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from oomdoctor.analysis.search.micro_batch import MAX_TRIES, Sample, divisors, next_size


@dataclass(frozen=True)
class FakeDevice:
    """Memory as a maximum of lines, throughput as a concave curve that may fall at the end."""

    usable: int
    lines: tuple[tuple[int, int], ...]  # (fixed bytes, bytes a sequence)
    half: float = 2.0  # micro-batch at which half of the top speed is reached
    drag: float = 0.0  # speed lost per further sequence

    def peak(self, size: int) -> int:
        return max(fixed + each * size for fixed, each in self.lines)

    def run(self, size: int) -> Sample:
        if self.peak(size) > self.usable:
            return Sample(size, "oom")
        rate = 1000 * size / (size + self.half) - self.drag * size
        return Sample(size, "fits", self.peak(size), max(rate, 1.0))


def survey(device: FakeDevice, effective: int) -> tuple[Sample, ...]:
    tried: tuple[Sample, ...] = ()
    while (step := next_size(effective, tried, device.usable)) is not None:
        assert step.micro_batch_size not in {s.micro_batch_size for s in tried}
        assert effective % step.micro_batch_size == 0
        assert step.why
        tried += (device.run(step.micro_batch_size),)
        assert len(tried) <= MAX_TRIES
    return tried


def largest_fit(tried: tuple[Sample, ...]) -> int:
    return max((s.micro_batch_size for s in tried if s.outcome == "fits"), default=0)


def true_largest(device: FakeDevice, effective: int) -> int:
    return max((d for d in divisors(effective) if device.peak(d) <= device.usable), default=0)


_LINES = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(0, 20_000)), min_size=1, max_size=4
).map(tuple)
DEVICES = st.builds(
    FakeDevice,
    usable=st.integers(1, 60_000),
    lines=_LINES,
    half=st.floats(0.1, 20),
    drag=st.floats(0, 30),
)
