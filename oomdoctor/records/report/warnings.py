"""Every warning of a report, worded in `data/warnings.toml`; a function each where words vary.

Warn only where the reader should do or know something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from oomdoctor.package_data import data_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import SIZES
from oomdoctor.records.job.machine import GpuProcess
from oomdoctor.records.report.report import Warn
from oomdoctor.units import format_bytes, format_percent, names_or_count

NoteCode = Literal["model_source", "model", "slurm", "log"]

MEMORY_NOT_FREE = "memory_not_free"


@cache
def codes() -> dict[str, dict[str, str]]:
    """What is said of each code: `when` it is given, and its wordings by name."""
    texts: dict[str, dict[str, str]] = data_of("warnings.toml")
    return texts


def warning(code: str, wording: str = "text", /, **values: Any) -> Warn:
    """The warning of a code, in one of its wordings; several names are listed."""
    listed = {k: ", ".join(v) if isinstance(v, tuple | list) else v for k, v in values.items()}
    return Warn(code, codes()[code][wording].format(**listed))


def unusual_sizes(configs: Iterable[TrainConfig]) -> list[Warn]:
    """Numbers of the rungs that are valid, but probably a typing error."""
    found, rungs = [], tuple(configs)
    for key, size in SIZES.items():
        values = [getattr(config, key) for config in rungs]
        largest = max((value for value in values if isinstance(value, int)), default=0)
        if largest > size.questioned:
            found.append(
                warning("unusual_size", words=size.words, largest=largest, usual=size.usual)
            )
    return found


def host_memory_short(needed_bytes: Mapping[str, int], has_bytes: int, *, here: bool) -> Warn:
    """The ranks of a node need more host memory than it has; `here` is that of this machine.

    `needed_bytes` is by label of the rung.
    """
    named = ", ".join(f"{label} ({format_bytes(size)})" for label, size in needed_bytes.items())
    whose = "this machine" if here else "--host-memory"
    return warning("host_memory", has=format_bytes(has_bytes), whose=whose, named=named)


def not_a_card(sizes: Sequence[str], *, ranked_by_speed: bool) -> Warn:
    """Sizes were given instead of cards."""
    are = "is a size, not a card" if len(sizes) == 1 else "are sizes, not cards"
    ranked = ", so rungs are ranked by peak memory" if ranked_by_speed else ""
    return warning("no_card", sizes=", ".join(sizes), are=are, ranked=ranked)


def speed_unknown(cards: Sequence[str], types: Sequence[str], *, ranked_by_speed: bool) -> Warn:
    """Some rungs have no estimate on these cards, so the speeds of rungs do not compare."""
    ranked = "rungs are ranked by peak memory; " if ranked_by_speed else ""
    named = names_or_count(cards, "cards")
    return warning("speed_unknown", cards=named, types=" and ".join(types), ranked=ranked)


def smallest_variant(asked: str, taken: str, others: Iterable[str]) -> Warn:
    """A name stands for several cards."""
    return warning("gpu_variant", asked=asked, taken=taken, others=", ".join(others))


def prices_unknown(source: str, names: Sequence[str]) -> Warn:
    """Names of a price list that are no cards."""
    are = "is not a known card" if len(names) == 1 else "are not known cards"
    return warning("prices", "unknown", source=source, names=", ".join(names), are=are)


def float16_rungs(cards: Sequence[str]) -> Warn:
    """The 16-bit type of the rungs followed the card."""
    have, these = ("has", "it") if len(cards) == 1 else ("have", "them")
    return warning("float16_rungs", cards=names_or_count(cards, "cards"), have=have, these=these)


def bfloat16_emulated(cards: Sequence[str], labels: Sequence[str]) -> Warn:
    """Rungs ask for bfloat16 on cards that emulate it."""
    named, emulate = names_or_count(cards, "cards"), "emulates" if len(cards) == 1 else "emulate"
    return warning("bfloat16_emulated", cards=named, emulate=emulate, labels=", ".join(labels))


def other_processes(processes: Iterable[GpuProcess]) -> Warn:
    """Other processes use memory of the GPU."""
    held = "; ".join(
        f"{process.name or 'unknown name'} (pid {process.pid}) "
        + ("unknown size" if process.used_bytes is None else format_bytes(process.used_bytes))
        for process in processes
    )
    return warning("other_processes", held=held)


def foreign_load(
    rungs: int, *, cpus: int, foreign_cpus: float | None, foreign_gpu: float | None
) -> Warn:
    """Other processes used what the timed steps needed; the figures are the highest seen."""
    used = []
    if foreign_gpu:
        used.append(f"the GPU for up to {format_percent(foreign_gpu)} of the time")
    if foreign_cpus and (not foreign_gpu or foreign_cpus > cpus / 2):
        used.append(f"up to {foreign_cpus:.1f} of {cpus} CPU cores")
    were = "1 rung was" if rungs == 1 else f"{rungs} rungs were"
    return warning("foreign_load", used=" and ".join(used), were=were)


def calibration_ignored(card: str, run: str | None) -> Warn:
    """Speeds that an earlier probe stored cannot be true."""
    return warning("calibration_ignored", by=f"run {run}" if run else "an earlier probe", card=card)


def time_not_believable(rungs: int, share: float, what: str) -> Warn:
    """Measured times imply more than the card can do; `share` is the highest, of `what`."""
    were = "1 rung has" if rungs == 1 else f"{rungs} rungs have"
    return warning("time_not_believable", were=were, share=format_percent(share), what=what)


def quoted(code: NoteCode, texts: Iterable[str]) -> list[Warn]:
    """Texts of others (Slurm, a source of models) as they are."""
    return [Warn(code, text) for text in texts]


def not_read(code: str, message: str) -> Warn:
    """One of several inputs could not be read; `code` is that of the error."""
    return Warn(code, f"skipped: {message}")
