"""Code that runs inside the user's own training. It loads torch only where the user has.

    from oomdoctor.monitor import MemoryCallback, guard, watch_memory

    memory      the watch of a training: a log, warnings, metrics
    callbacks   the same for transformers' Trainer and for Lightning
    guarding/      an out-of-memory error becomes a diagnosis, or the batch is skipped
    log, live_line, readings, alerts   what the watch writes, shows, reads and warns about
    inside/     what `oomdoctor run` sees of a training

It runs in the user's interpreter, so it needs only the standard library; torch and transformers
are imported inside functions, after the user's code has imported them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oomdoctor.monitor.alerts import Alert
    from oomdoctor.monitor.callbacks import LightningMemoryCallback, MemoryCallback
    from oomdoctor.monitor.guarding.block import Guard, guard
    from oomdoctor.monitor.memory import MemoryWatch, watch_memory

_HOMES = {
    "Alert": "alerts",
    "Guard": "guarding.block",
    "guard": "guarding.block",
    "LightningMemoryCallback": "callbacks",
    "MemoryCallback": "callbacks",
    "MemoryWatch": "memory",
    "watch_memory": "memory",
}
__all__ = [
    "Alert",
    "Guard",
    "LightningMemoryCallback",
    "MemoryCallback",
    "MemoryWatch",
    "guard",
    "watch_memory",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that `run` pays for nothing else."""
    if name == "DiagnosedOutOfMemoryError":
        from oomdoctor.monitor.guarding.diagnosed import diagnosed_type

        return diagnosed_type()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
