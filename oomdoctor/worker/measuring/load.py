"""Who uses the cores and the GPU while steps are timed: this process, or others too.

Other processes make a step slower than it is on an idle machine. The kernel counts the busy time of
each core, and of this process; the rest was used by others. For the GPU, the driver is asked.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.records.measurement import Load
from oomdoctor.worker.measuring import nvml

# The kernel counts in hundredths of a second, so less than this says little.
_LEAST_S = 0.2
# Of a line of /proc/stat: user, nice, system, irq, softirq, steal (man 5 proc). The rest is idle,
# or already counted as user.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class Start:
    """The clocks at the start; times in seconds, `busy_s` None if the kernel does not count."""

    wall_s: float
    own_s: float
    busy_s: float | None
    unix_us: int


def begin() -> Start:
    """The clocks now."""
    return Start(time.perf_counter(), time.process_time(), _busy_seconds(), int(time.time() * 1e6))


def since(start: Start, *, threads: int, gpu_uuid: str | None = None) -> Load | None:
    """Who used the device since `start`; None if that was too short to tell."""
    passed = time.perf_counter() - start.wall_s
    if passed < _LEAST_S:
        return None
    own = time.process_time() - start.own_s
    busy, foreign = _busy_seconds(), None
    if start.busy_s is not None and busy is not None:
        foreign = max(0.0, busy - start.busy_s - own) / passed
    return Load(
        cpus=len(os.sched_getaffinity(0)),
        threads=threads,
        own_cpus=own / passed,
        foreign_cpus=foreign,
        foreign_gpu=nvml.foreign_utilization(gpu_uuid, start.unix_us),
    )


def _busy_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds in which the cores that this process may use were busy, since the machine started."""
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    wanted = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in lines:
        name, *counts = line.split()
        if name in wanted and len(counts) > max(_BUSY):
            ticks += sum(int(counts[field]) for field in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None
