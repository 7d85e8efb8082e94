"""Tells the emulated device where a training is, for its notes of launches.

Without notes, which `run --why` and `run --trace` ask for, nothing is called.
"""

from __future__ import annotations

from typing import Any

from oomdoctor.monitor.inside.process_facts import emulated_device

AFTER_BACKWARD = "update"
_device: Any = None
_phase = ""


def begin(*, asked: bool) -> None:
    """Tell from now on, if it was asked for and there is an emulated device."""
    global _device
    _device = emulated_device() if asked else None


def note_phase(phase: str) -> None:
    """A phase begins, unless it has begun before."""
    global _phase
    if _device is not None and phase != _phase:
        _phase = phase
        _device.emu_note_mark(phase.encode(), 0)


def note_step(step: int) -> None:
    """The step with this number has ended."""
    if _device is not None:
        _device.emu_note_mark(None, step)
