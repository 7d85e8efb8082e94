"""Every warning of a report, worded in `data/warnings.toml`; a function where values are texts.

Warn only where the reader should do or know something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from string import Formatter
from typing import Any, Literal

from oomdoctor.package_data import data_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import SIZES
from oomdoctor.records.job.machine import GpuProcess
from oomdoctor.records.job.measurement import Load
from oomdoctor.records.report.report import Warn
from oomdoctor.units import format_bytes, format_percent

NoteCode = Literal["model_source", "model", "slurm", "log"]

MEMORY_NOT_FREE, LOWERED = "memory_not_free", "sequence_length"


@cache
def codes() -> dict[str, dict[str, str]]:
    """What is said of each code: `when` it is given, and its wordings by name."""
    texts: dict[str, dict[str, str]] = data_of("warnings.toml")
    return texts


class _Wording(Formatter):
    """Fills in values: names are listed, or with `few` counted if they are more than three.

    `{cards:has|have}` is the first word for one card or a count of one, else the second.
    """

    def format_field(self, value: Any, spec: str) -> str:
        names = value if isinstance(value, tuple | list) else None
        if "|" in spec:
            singular, plural = spec.split("|")
            return singular if (value if names is None else len(names)) == 1 else plural
        if names is None:
            return str(super().format_field(value, spec))
        return f"{len(names)} cards" if spec == "few" and len(names) > 3 else ", ".join(names)


def warning(code: str, wording: str = "text", /, **values: Any) -> Warn:
    """The warning of a code, in one of its wordings."""
    return Warn(code, _Wording().format(codes()[code][wording], **values))


def unusual_sizes(configs: Iterable[TrainConfig]) -> list[Warn]:
    """Numbers of the configurations that are valid, but probably a typing error."""
    warns, rungs = [], tuple(configs)
    for key, size in SIZES.items():
        values = [getattr(config, key) for config in rungs]
        most = max((value for value in values if isinstance(value, int)), default=0)
        if most > size.questioned:
            warns.append(warning("unusual_size", words=size.words, largest=most, usual=size.usual))
    return warns


def host_memory_short(needed_bytes: Mapping[str, int], has_bytes: int, *, here: bool) -> Warn:
    """The ranks of a node need more host memory than it has; `here` is that of this machine.

    `needed_bytes` is by label of the configuration.
    """
    named = ", ".join(f"{label} ({format_bytes(size)})" for label, size in needed_bytes.items())
    whose = "this machine" if here else "--host-memory"
    return warning("host_memory", has=format_bytes(has_bytes), whose=whose, named=named)


def other_processes(processes: Iterable[GpuProcess]) -> Warn:
    """Other processes use memory of the GPU."""
    named = (
        (f"{process.name or 'unknown name'} (pid {process.pid})", process.used_bytes)
        for process in processes
    )
    held = (f"{name} {'unknown size' if n is None else format_bytes(n)}" for name, n in named)
    return warning("other_processes", held="; ".join(held))


def foreign_load(loads: Sequence[Load]) -> Warn:
    """Other processes used what timed steps needed; `loads` are those of the configurations."""
    cpus = loads[0].cpus
    foreign_cpus = max(load.foreign_cpus or 0.0 for load in loads)
    foreign_gpu = max(load.foreign_gpu or 0.0 for load in loads)
    used = [f"the GPU for up to {format_percent(foreign_gpu)} of the time"] if foreign_gpu else []
    if foreign_cpus and (not foreign_gpu or foreign_cpus > cpus / 2):
        used.append(f"up to {foreign_cpus:.1f} of {cpus} CPU cores")
    return warning("foreign_load", used=" and ".join(used), rungs=len(loads))


def calibration_ignored(card: str, run: str | None) -> Warn:
    """Speeds that an earlier probe stored cannot be true."""
    return warning("calibration_ignored", by=f"run {run}" if run else "an earlier probe", card=card)


def quoted(code: NoteCode, texts: Iterable[str]) -> list[Warn]:
    """Texts of others (Slurm, a source of models) as they are."""
    return [Warn(code, text) for text in texts]


def not_read(code: str, message: str) -> Warn:
    """One of several inputs could not be read; `code` is that of the error."""
    return Warn(code, f"skipped: {message}")
