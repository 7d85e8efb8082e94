"""Every warning of a report: a function each, which fills its wording in `data/warnings.toml`.

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
EMULATED = "emulated_device"


@cache
def codes() -> dict[str, dict[str, str]]:
    """What is said of each code: `when` it is given, and its wordings by name."""
    texts: dict[str, dict[str, str]] = data_of("warnings.toml")
    return texts


def _warn(code: str, wording: str = "text", /, **values: Any) -> Warn:
    return Warn(code, codes()[code][wording].format(**values))


def unusual_sizes(configs: Iterable[TrainConfig]) -> list[Warn]:
    """Numbers of the rungs that are valid, but probably a typing error."""
    found, rungs = [], tuple(configs)
    for key, size in SIZES.items():
        values = [getattr(config, key) for config in rungs]
        largest = max((value for value in values if isinstance(value, int)), default=0)
        if largest > size.questioned:
            found.append(_warn("unusual_size", words=size.words, largest=largest, usual=size.usual))
    return found


def sequence_lowered(model: str, limit: int, asked: int) -> Warn:
    """The rungs have longer sequences than the model has positions."""
    return _warn("sequence_length", "lowered", model=model, limit=limit, asked=asked)


def sweep_ends(model: str, limit: int) -> Warn:
    """A sweep over lengths goes beyond the model's positions."""
    return _warn("sequence_length", "sweep", model=model, limit=limit)


def host_memory_short(needed_bytes: Mapping[str, int], has_bytes: int, *, here: bool) -> Warn:
    """The ranks of a node need more host memory than it has; `here` is that of this machine.

    `needed_bytes` is by label of the rung.
    """
    named = ", ".join(f"{label} ({format_bytes(size)})" for label, size in needed_bytes.items())
    whose = "this machine" if here else "--host-memory"
    return _warn("host_memory", has=format_bytes(has_bytes), whose=whose, named=named)


def not_a_card(sizes: Sequence[str], *, ranked_by_speed: bool) -> Warn:
    """Sizes were given instead of cards."""
    are = "is a size, not a card" if len(sizes) == 1 else "are sizes, not cards"
    ranked = ", so rungs are ranked by peak memory" if ranked_by_speed else ""
    return _warn("no_card", sizes=", ".join(sizes), are=are, ranked=ranked)


def speed_unknown(cards: Sequence[str], types: Sequence[str], *, ranked_by_speed: bool) -> Warn:
    """Some rungs have no estimate on these cards, so the speeds of rungs do not compare."""
    ranked = "rungs are ranked by peak memory; " if ranked_by_speed else ""
    named = names_or_count(cards, "cards")
    return _warn("speed_unknown", cards=named, types=" and ".join(types), ranked=ranked)


def smallest_variant(asked: str, taken: str, others: Iterable[str]) -> Warn:
    """A name stands for several cards."""
    return _warn("gpu_variant", asked=asked, taken=taken, others=", ".join(others))


def prices_unknown(source: str, names: Sequence[str]) -> Warn:
    """Names of a price list that are no cards."""
    are = "is not a known card" if len(names) == 1 else "are not known cards"
    return _warn("prices", "unknown", source=source, names=", ".join(names), are=are)


def prices_repeated(source: str, cards: Sequence[str]) -> Warn:
    """Cards that a price list has more than once."""
    return _warn("prices", "repeated", source=source, cards=", ".join(cards))


def prices_not_compared(source: str, cards: Sequence[str]) -> Warn:
    """Cards of a price list that --all-gpus leaves out, because they are not NVIDIA's."""
    return _warn("prices", "not_compared", source=source, cards=", ".join(cards))


def prices_of_others(source: str) -> Warn:
    """A price list without any of the plan's cards."""
    return _warn("prices", "of_others", source=source)


def not_nvidia(cards: Iterable[str]) -> Warn:
    """Cards of other vendors are simulated with CUDA's kernels."""
    return _warn("not_nvidia", cards=", ".join(cards))


def float16_rungs(cards: Sequence[str]) -> Warn:
    """The 16-bit type of the rungs followed the card."""
    have, these = ("has", "it") if len(cards) == 1 else ("have", "them")
    return _warn("float16_rungs", cards=names_or_count(cards, "cards"), have=have, these=these)


def bfloat16_emulated(cards: Sequence[str], labels: Sequence[str]) -> Warn:
    """Rungs ask for bfloat16 on cards that emulate it."""
    named, emulate = names_or_count(cards, "cards"), "emulates" if len(cards) == 1 else "emulate"
    return _warn("bfloat16_emulated", cards=named, emulate=emulate, labels=", ".join(labels))


def cap_above_free(cap_bytes: int, free_bytes: int) -> Warn:
    """--vram is more than there is."""
    return _warn("cap_above_free", cap=format_bytes(cap_bytes), free=format_bytes(free_bytes))


def other_processes(processes: Iterable[GpuProcess]) -> Warn:
    """Other processes use memory of the GPU."""
    held = "; ".join(
        f"{process.name or 'unknown name'} (pid {process.pid}) "
        + ("unknown size" if process.used_bytes is None else format_bytes(process.used_bytes))
        for process in processes
    )
    return _warn("other_processes", held=held)


def memory_not_free(missing_bytes: int) -> Warn:
    """A child's memory did not come back, or another process took it."""
    return _warn(MEMORY_NOT_FREE, missing=format_bytes(missing_bytes))


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
    return _warn("foreign_load", used=" and ".join(used), were=were)


def calibration_ignored(card: str, run: str | None) -> Warn:
    """Speeds that an earlier probe stored cannot be true."""
    return _warn("calibration_ignored", by=f"run {run}" if run else "an earlier probe", card=card)


def emulated_device() -> Warn:
    """The GPU only pretends to be one."""
    return _warn(EMULATED)


def engines_not_run(reason: str) -> Warn:
    """Rungs on several GPUs are simulated; with a CUDA build of torch their engines run."""
    return _warn("engines_not_run", reason=reason)


def not_checked(reasons: Mapping[str, str]) -> Warn:
    """Rungs of a plan that could not be checked on the emulated card, by label."""
    failed = "; ".join(f"{label} ({reason})" for label, reason in reasons.items())
    return _warn("not_checked", failed=failed)


def time_not_believable(rungs: int, share: float, what: str) -> Warn:
    """Measured times imply more than the card can do; `share` is the highest, of `what`."""
    were = "1 rung has" if rungs == 1 else f"{rungs} rungs have"
    return _warn("time_not_believable", were=were, share=format_percent(share), what=what)


def moe_routing() -> Warn:
    """Synthetic weights route tokens differently from trained ones."""
    return _warn("moe_routing")


def time_limit() -> Warn:
    """The time limit ended the run before all rungs were tried."""
    return _warn("time_limit")


def not_kept(reason: str) -> Warn:
    """The cache folder cannot be written."""
    return _warn("not_kept", reason=reason)


def few_addresses(limit: str, remedy: str) -> Warn:
    """A limit on the addresses of a process is lower than large tensors need for a moment."""
    return _warn("few_addresses", limit=limit, remedy=remedy)


def quoted(code: NoteCode, texts: Iterable[str]) -> list[Warn]:
    """Texts of others (Slurm, a source of models) as they are."""
    return [Warn(code, text) for text in texts]


def not_read(code: str, message: str) -> Warn:
    """One of several inputs could not be read; `code` is that of the error."""
    return Warn(code, f"skipped: {message}")


def not_recorded(kind: str, label: str, reason: str) -> Warn:
    """There is no snapshot or trace of a rung that was asked for."""
    return _warn("not_recorded", kind=kind, label=label, reason=reason)


def not_exact(reason: str, *, partly: bool = False) -> Warn:
    """All or some sizes are computed although a simulation was asked for."""
    return _warn("not_exact", "partly" if partly else "text", reason=reason)


def snapshot_unused(name: str, *, any_failed: bool) -> Warn:
    """The snapshot and the log are not about the same failure."""
    return _warn("snapshot_unused", "text" if any_failed else "none_failed", name=name)


def unknown_values(message: str) -> Warn:
    """The command stopped because of a value that no kernel has computed."""
    return _warn("unknown_values", message=message)


def gpu_unused() -> Warn:
    """No process of the command used CUDA, or none could be watched."""
    return _warn("gpu_unused")


def ended_from_outside(text: str) -> Warn:
    """Something that the output does not show ended the command, and it was not memory."""
    return _warn("ended_from_outside", said=text)


def no_values(reason: str) -> Warn:
    """Not even small integers have values on this emulated GPU."""
    return _warn("no_values", reason=reason)


def one_rank(ranks: int, *, failed: bool = False) -> Warn:
    """One rank stood for all; `failed` says that the command failed."""
    return _warn("one_rank", "failed" if failed else "text", ranks=ranks)


def not_steady(steps: int) -> Warn:
    """Memory never repeated."""
    return _warn("not_steady", steps=steps)
