"""Peaks by step and phase: on CUDA from the caching allocator, on the CPU from the trace.

Both meters have the same five methods; `for_job` chooses one. They watch separate steps, never the
timed ones.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from oomdoctor.analysis.memory.phases import Window
from oomdoctor.records.job.measurement import PhaseMemory
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.measuring import nvml
from oomdoctor.worker.protocol import own_device, own_uuid
from oomdoctor.worker.tracing.trace import AllocationTrace


@dataclass(slots=True)
class DeviceTotals:
    """Facts about the device besides phase peaks; None if the device does not have them."""

    overhead_bytes: int | None = None
    allocation_retries: int | None = None
    memory_stats: Mapping[str, int] = field(default_factory=dict)


def for_job(job: ProbeJob) -> Meter:
    """The meter for the job's device; on CUDA this creates the context."""
    return CpuMeter(job.budget_bytes) if job.device_type == "cpu" else CudaMeter(job)


def peak_rss_bytes() -> int:
    """The largest resident set of this process so far (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CpuMeter:
    """Counts the bytes of all operators' results; crossing the budget raises out of memory."""

    def __init__(self, budget: int | None) -> None:
        self.peaks: list[tuple[Window, PhaseMemory]] = []
        self.trace = AllocationTrace("cpu", limit=budget)
        self._window: Window | None = None

    def recording(self) -> AbstractContextManager[object]:
        return self.trace.recording()

    def on_host(self) -> AbstractContextManager[None]:
        return self.trace.paused()

    def enter(self, step: str, phase: str) -> None:
        if self._window is not None:
            self.peaks.append((self._window, PhaseMemory(self.trace.window_peak)))
        self._window = (step, phase)
        self.trace.enter(step, phase)

    def trace_for_breakdown(self) -> AllocationTrace:
        return self.trace

    def totals(self, managed_bytes: int) -> DeviceTotals:
        return DeviceTotals()


class CudaMeter:
    """Reads the peaks of PyTorch's caching allocator, and what the process uses outside it."""

    def __init__(self, job: ProbeJob) -> None:
        self.peaks: list[tuple[Window, PhaseMemory]] = []
        self._window: Window | None = None
        self._uuid = own_uuid()
        self._used_before = nvml.used_bytes(self._uuid)
        torch.cuda.init()
        torch.cuda.set_device(own_device("cuda"))
        torch.zeros(1, device="cuda")  # the context exists only after a first allocation
        torch.cuda.synchronize()
        self._budget, self._vllm = job.budget_bytes, job.vllm_bytes
        self._outside_at_start = self._outside_the_allocator()
        self._cap()

    def _cap(self) -> None:
        """Limit the allocator to what the context and the libraries leave of the budget.

        A cache that reaches the limit is then freed and reused, as on a card of that size. This is
        called before each watched step, because libraries load with the first use of their kernels.
        """
        if self._budget is None and not self._vllm:
            return
        total = torch.cuda.mem_get_info()[1]
        budget = total if self._budget is None else self._budget
        allowed = budget - self._vllm - (self._outside_the_allocator() or 0)
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, allowed / total)))

    def _outside_the_allocator(self) -> int | None:
        used = nvml.used_bytes(self._uuid)
        if used is None or self._used_before is None:
            return None
        return max(0, used - self._used_before - int(torch.cuda.memory_reserved()))

    def recording(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def on_host(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def enter(self, step: str, phase: str) -> None:
        if self._window is not None and self._window[0] != step:
            self._cap()
        if self._window is not None:
            cuda = torch.cuda
            memory = PhaseMemory(cuda.max_memory_allocated(), cuda.max_memory_reserved())
            self.peaks.append((self._window, memory))
        self._window = (step, phase)
        torch.cuda.reset_peak_memory_stats()

    def trace_for_breakdown(self) -> AllocationTrace:
        return AllocationTrace("cuda")

    def totals(self, managed_bytes: int) -> DeviceTotals:
        stats = torch.cuda.memory_stats()
        outside, start, overhead = self._outside_the_allocator(), self._outside_at_start, None
        if outside is not None and start is not None:
            # Paged states are on the device only while there is room for them, so the rung does not
            # need them there. They are reported separately (`managed_bytes`).
            overhead = max(start, outside - managed_bytes) + self._vllm
        return DeviceTotals(
            overhead_bytes=overhead,
            allocation_retries=int(stats.get("num_alloc_retries", 0)),
            memory_stats={
                name: int(value)
                for name, value in stats.items()
                if name.startswith(_REPORTED_STATS) and isinstance(value, int)
            },
        )


Meter: TypeAlias = CpuMeter | CudaMeter
"""Watches the memory of one device while phases go by."""

_REPORTED_STATS = (
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
    "allocated_bytes.all",
    "reserved_bytes.all",
    "active_bytes.all",
    "inactive_split_bytes.all",
    "segment.all",
)
