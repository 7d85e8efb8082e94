"""Peaks of PyTorch's allocator while each operator ran, beside what the trace sees of tensors.

A kernel takes memory that no tensor shows, such as workspaces, and the allocator rounds. So what is
allocated is read from the allocator after every operator, in the one step that is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oomdoctor.analysis.memory.curve import Stretch
from oomdoctor.worker.tracing.trace import AllocationTrace


class KernelPeaks:
    """The peak since the operator before, and which events of the tape happened by then."""

    def __init__(self, trace: AllocationTrace) -> None:
        import torch

        self._tape = trace.tape
        self._cuda = torch.cuda
        self._ends: list[int] = []
        self._peaks: list[int] = []
        self._last = 0
        self._cuda.reset_peak_memory_stats()

    def note(self, *_: Any) -> None:
        """An operator has ended."""
        allocated = self._cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
        self._ends.append(len(self._tape.events))
        self._peaks.append(allocated["peak"])
        self._last = allocated["current"]
        self._cuda.reset_peak_memory_stats()

    def of(self, parts: Sequence[Stretch]) -> list[int]:
        """The peak of each part; after the last operator, memory is only freed."""
        return [peak or self._last for peak in peaks_of(parts, self._ends, self._peaks)]


def peaks_of(parts: Sequence[Stretch], ends: Sequence[int], peaks: Sequence[int]) -> list[int]:
    """The highest peak of the operators that each part has events of; 0 where there are none.

    By the end of each operator, `ends` events of the tape had happened.
    """
    highest = [0] * len(parts)
    begin, part = 0, 0
    for end, peak in zip(ends, peaks, strict=True):
        while part < len(parts) - 1 and parts[part].end <= begin:
            part += 1
        at = part
        highest[at] = max(highest[at], peak)
        while at < len(parts) - 1 and parts[at].end < end:
            at += 1
            highest[at] = max(highest[at], peak)
        begin = end
    return highest
