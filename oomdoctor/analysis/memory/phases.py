"""The peaks of a training step by phase, and the phase with the highest."""

from __future__ import annotations

from typing import Any

from oomdoctor.records.measurement import PhaseMemory, PhaseName

Window = tuple[str, str]  # step, phase


def peak_phase(phases: dict[str, PhaseMemory]) -> PhaseName:
    """The phase with the highest peak."""
    name: Any = max(phases, key=lambda name: _decisive(phases[name]))
    highest: PhaseName = name
    return highest


def _decisive(memory: PhaseMemory) -> tuple[int, int]:
    return memory.peak_allocated_bytes, memory.peak_reserved_bytes or 0


def worst_by_phase(windows: dict[Window, PhaseMemory]) -> dict[str, PhaseMemory]:
    """The highest peaks of each phase over all steps."""
    worst: dict[str, PhaseMemory] = {}
    for (_, phase), memory in windows.items():
        before = worst.get(phase, memory)
        worst[phase] = PhaseMemory(
            max(before.peak_allocated_bytes, memory.peak_allocated_bytes),
            None
            if memory.peak_reserved_bytes is None
            else max(before.peak_reserved_bytes or 0, memory.peak_reserved_bytes),
        )
    return worst
