"""What happens once torch is imported: wait for the first use of CUDA, then watch the process."""

from __future__ import annotations

import os
from pathlib import Path

from oomdoctor.monitor.inside.device.history import leave_to_the_script
from oomdoctor.monitor.inside.process_watch import Watch
from oomdoctor.monitor.shared_folder import asked
from oomdoctor.system.environment import WATCH_FOLDER, variable

_watch: Watch | None = None


def after_torch() -> None:
    """Queue the start of the watch behind the initialization of CUDA.

    A process that never uses CUDA is not watched, and neither is a child that it forks before.
    """
    import torch

    folder = Path(variable(WATCH_FOLDER) or "")
    settings = asked(folder)

    def begin() -> None:
        global _watch
        if _watch is None or _watch.pid != os.getpid():
            _watch = Watch(folder, settings)
            _watch.begin()

    torch.cuda._lazy_call(begin)
    leave_to_the_script()


def current() -> Watch | None:
    """The watch of this process; None before it uses CUDA, and in a forked child."""
    return _watch if _watch is not None and _watch.pid == os.getpid() else None
