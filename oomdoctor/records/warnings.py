"""Every warning of a report: one function each, so that a code has one wording.

Warn only where the reader should do or know something. `CODES` says when each code is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.choices import SIZES
from oomdoctor.records.machine import GpuProcess
from oomdoctor.records.report import Warn
from oomdoctor.units import format_bytes, format_percent, names_or_count

NoteCode = Literal["model_source", "model", "slurm", "log"]

MEMORY_NOT_FREE = "memory_not_free"
EMULATED = "emulated_device"
CODES = {
    "sequence_length": "the model has fewer positions than the sequence length asked for",
    "unusual_size": "a batch size, sequence length or LoRA rank is far above what is usual",
    "no_card": "plan was given a size of memory, so speed cannot be estimated",
    "speed_unknown": "too few figures of a card are published to estimate the speed of some rungs",
    "gpu_variant": "the name of a card stands for several; the smallest was taken",
    "prices": "the price list has an unknown name, a card twice, or a card that is not compared",
    "float16_rungs": "rungs use float16 on a card without bfloat16",
    "bfloat16_emulated": "a rung asks for bfloat16 on a card that emulates it",
    "not_kept": "the cache folder cannot be written, so the next plan simulates again",
    "few_addresses": "plan: `ulimit -v` may be too low for rungs with large tensors",
    "not_nvidia": "plan was given a card that is not NVIDIA's",
    "cap_above_free": "--vram is more than the free memory",
    "other_processes": "other processes use memory of the same GPU",
    MEMORY_NOT_FREE: "memory that was free at the start is in use now",
    "host_memory": "the ranks of a node need more host memory than it has, or --host-memory says",
    "foreign_load": "other processes used the cores or the GPU while steps were timed",
    "calibration_ignored": "stored speeds of a card imply more than the card can do",
    EMULATED: "the GPU is emulated, so times mean nothing",
    "engines_not_run": "plan: rungs on several GPUs are simulated, because no engine can run here",
    "not_checked": "a rung could not be checked on the emulated card, so it is only predicted",
    "time_not_believable": "measured times imply more than the card can do",
    "moe_routing": "a mixture of experts is trained with synthetic weights",
    "time_limit": "the time limit ended the run",
    "no_values": "the emulated GPU knows no values of small tensors, such as masks and counts",
    "unknown_values": "run: the command may have failed because an emulated GPU computes no values",
    "ended_from_outside": "run: a signal of Slurm or of a person ended the command",
    "gpu_unused": "run: no process of the command used the GPU",
    "not_steady": "run: memory differed from step to step, so the training ran to its end",
    "one_rank": "run: --ranks 1 let one rank stand for all",
    "not_recorded": "probe and plan: a rung could not be recorded in a file",
    "not_exact": "explain: --exact could not simulate the training, or was interrupted",
    "snapshot_unused": "explain: the snapshot does not show the failure of the log",
    "model_source": "a note about where the facts of the model come from (probe and plan)",
    "model": "a note about where the facts of the model come from (explain)",
    "slurm": "what Slurm's accounting says about a job",
    "log": "a note about a log, such as a part that was left out",
    "(an error's code)": "explain could not read one of several inputs; the code is that error's",
}


def unusual_sizes(configs: Iterable[TrainConfig]) -> list[Warn]:
    """Numbers of the rungs that are valid, but probably a typing error."""
    found, rungs = [], tuple(configs)
    for key, size in SIZES.items():
        values = [getattr(config, key) for config in rungs]
        largest = max((value for value in values if isinstance(value, int)), default=0)
        if largest > size.questioned:
            text = f"{size.words} {largest:,} is far above the usual {size.usual}"
            found.append(Warn("unusual_size", text))
    return found


def sequence_lowered(model: str, limit: int, asked: int) -> Warn:
    """The rungs have longer sequences than the model has positions."""
    return Warn(
        "sequence_length",
        f"{model} has {limit:,} positions: sequence length lowered from {asked:,} to {limit:,}",
    )


def sweep_ends(model: str, limit: int) -> Warn:
    """A sweep over lengths goes beyond the model's positions."""
    return Warn("sequence_length", f"{model} has {limit:,} positions: the sweep ends there")


def host_memory_short(needed_bytes: Mapping[str, int], has_bytes: int, *, here: bool) -> Warn:
    """The ranks of a node need more host memory than it has; `here` is that of this machine.

    `needed_bytes` is by label of the rung.
    """
    named = [f"{label} ({format_bytes(size)})" for label, size in needed_bytes.items()]
    whose = "this machine" if here else "--host-memory"
    return Warn(
        "host_memory",
        f"the ranks of a node need more host memory than the {format_bytes(has_bytes)} of {whose}, "
        f"so the kernel may kill them: {', '.join(named)}; use more nodes or less offload",
    )


def not_a_card(sizes: Sequence[str], *, ranked_by_speed: bool) -> Warn:
    """Sizes were given instead of cards."""
    are = "is a size, not a card" if len(sizes) == 1 else "are sizes, not cards"
    ranked = ", so rungs are ranked by peak memory" if ranked_by_speed else ""
    return Warn(
        "no_card",
        f"{', '.join(sizes)} {are}: speed cannot be estimated{ranked}; for speeds name a card, "
        "such as --gpu 'RTX 4090'",
    )


def speed_unknown(cards: Sequence[str], types: Sequence[str], *, ranked_by_speed: bool) -> Warn:
    """Some rungs have no estimate on these cards, so the speeds of rungs do not compare."""
    ranked = "rungs are ranked by peak memory; " if ranked_by_speed else ""
    return Warn(
        "speed_unknown",
        f"{names_or_count(cards, 'cards')}: too few figures are published to estimate the speed "
        f"of {' and '.join(types)} rungs; {ranked}run `oomdoctor probe` on the card to measure it",
    )


def smallest_variant(asked: str, taken: str, others: Iterable[str]) -> Warn:
    """A name stands for several cards."""
    return Warn(
        "gpu_variant",
        f"{asked!r} could be several cards; using the smallest, {taken} "
        f"(others: {', '.join(others)})",
    )


def prices_unknown(source: str, names: Sequence[str]) -> Warn:
    """Names of a price list that are no cards."""
    are = "is not a known card" if len(names) == 1 else "are not known cards"
    return Warn("prices", f"{source}: {', '.join(names)} {are}; `oomdoctor gpus` lists the cards")


def prices_repeated(source: str, cards: Sequence[str]) -> Warn:
    """Cards that a price list has more than once."""
    return Warn(
        "prices", f"{source} lists {', '.join(cards)} more than once; the lowest price counts"
    )


def prices_not_compared(source: str, cards: Sequence[str]) -> Warn:
    """Cards of a price list that --all-gpus leaves out, because they are not NVIDIA's."""
    return Warn(
        "prices",
        f"{source}: {', '.join(cards)} left out, because --all-gpus compares NVIDIA cards; name "
        "other cards with --gpu",
    )


def prices_of_others(source: str) -> Warn:
    """A price list without any of the plan's cards."""
    return Warn("prices", f"{source} has no price for any card of this plan")


def not_nvidia(cards: Iterable[str]) -> Warn:
    """Cards of other vendors are simulated with CUDA's kernels."""
    return Warn(
        "not_nvidia",
        f"{', '.join(cards)}: simulated with CUDA's kernels; on ROCm memory use may differ",
    )


def float16_rungs(cards: Sequence[str]) -> Warn:
    """The 16-bit type of the rungs followed the card."""
    have, these = ("has", "it") if len(cards) == 1 else ("have", "them")
    return Warn(
        "float16_rungs",
        f"{names_or_count(cards, 'cards')} {have} no bfloat16 (compute capability below 8.0): "
        f"the rungs for {these} use float16 and a gradient scaler",
    )


def bfloat16_emulated(cards: Sequence[str], labels: Sequence[str]) -> Warn:
    """Rungs ask for bfloat16 on cards that emulate it."""
    emulate = "emulates" if len(cards) == 1 else "emulate"
    return Warn(
        "bfloat16_emulated",
        f"{names_or_count(cards, 'cards')} {emulate} bfloat16, which is slower than float32: "
        f'{", ".join(labels)}; for speed set autocast_dtype to "float16"',
    )


def cap_above_free(cap_bytes: int, free_bytes: int) -> Warn:
    """--vram is more than there is."""
    return Warn(
        "cap_above_free",
        f"--vram {format_bytes(cap_bytes)} is more than the {format_bytes(free_bytes)} that is "
        "free; using the free memory",
    )


def other_processes(processes: Iterable[GpuProcess]) -> Warn:
    """Other processes use memory of the GPU."""
    held = "; ".join(
        f"{process.name or 'unknown name'} (pid {process.pid}) "
        + ("unknown size" if process.used_bytes is None else format_bytes(process.used_bytes))
        for process in processes
    )
    return Warn("other_processes", f"other processes use memory on this GPU: {held}")


def memory_not_free(missing_bytes: int) -> Warn:
    """A child's memory did not come back, or another process took it."""
    return Warn(
        MEMORY_NOT_FREE,
        f"{format_bytes(missing_bytes)} of GPU memory that was free at the start is now in use, by "
        "another process or the driver; later rungs may have run out of memory because of it",
    )


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
    return Warn(
        "foreign_load",
        f"other processes used {' and '.join(used)} while {were} timed; these speeds are lower "
        "than on an idle machine",
    )


def calibration_ignored(card: str, run: str | None) -> Warn:
    """Speeds that an earlier probe stored cannot be true."""
    by = f"run {run}" if run else "an earlier probe"
    return Warn(
        "calibration_ignored",
        f"ignoring what {by} stored about {card}: it implies more than the card can do; the next "
        "probe on that card replaces it",
    )


def emulated_device() -> Warn:
    """The GPU only pretends to be one."""
    return Warn(
        EMULATED,
        "the GPU is emulated: memory is exact, but no kernel runs, so there are no speeds",
    )


def engines_not_run(reason: str) -> Warn:
    """Rungs on several GPUs are simulated; with a CUDA build of torch their engines run."""
    return Warn(
        "engines_not_run",
        "rungs on several GPUs are simulated; their engines run on the emulated card if --python "
        f"names an interpreter with a CUDA build of torch ({reason})",
    )


def not_checked(reasons: Mapping[str, str]) -> Warn:
    """Rungs of a plan that could not be checked on the emulated card, by label."""
    failed = "; ".join(f"{label} ({reason})" for label, reason in reasons.items())
    return Warn("not_checked", f"not checked on the emulated card, only predicted: {failed}")


def time_not_believable(rungs: int, share: float, what: str) -> Warn:
    """Measured times imply more than the card can do; `share` is the highest, of `what`."""
    were = "1 rung has" if rungs == 1 else f"{rungs} rungs have"
    return Warn(
        "time_not_believable",
        f"{were} times that imply up to {format_percent(share)} of the card's {what}; the clock "
        "is wrong, or the device is not what it says it is",
    )


def moe_routing() -> Warn:
    """Synthetic weights route tokens differently from trained ones."""
    return Warn(
        "moe_routing",
        "mixture of experts: routing depends on the weights, so with synthetic weights memory and "
        "speed may differ from those of a trained router",
    )


def time_limit() -> Warn:
    """The time limit ended the run before all rungs were tried."""
    return Warn("time_limit", "the time limit was reached; continue with --resume")


def not_kept(reason: str) -> Warn:
    """The cache folder cannot be written."""
    return Warn(
        "not_kept",
        f"what was simulated could not be kept for later plans: {reason}; set XDG_CACHE_HOME to a "
        "writable folder",
    )


def few_addresses(limit: str, remedy: str) -> Warn:
    """A limit on the addresses of a process is lower than large tensors need for a moment."""
    return Warn(
        "few_addresses",
        f"{limit}; rungs with large tensors may need more and get no result; {remedy}",
    )


def quoted(code: NoteCode, texts: Iterable[str]) -> list[Warn]:
    """Texts of others (Slurm, a source of models) as they are."""
    return [Warn(code, text) for text in texts]


def not_read(code: str, message: str) -> Warn:
    """One of several inputs could not be read; `code` is that of the error."""
    return Warn(code, f"skipped: {message}")


def not_recorded(kind: str, label: str, reason: str) -> Warn:
    """There is no snapshot or trace of a rung that was asked for."""
    return Warn("not_recorded", f"no {kind} of {label}: {reason}")


def not_exact(reason: str, *, partly: bool = False) -> Warn:
    """All or some sizes are computed although a simulation was asked for."""
    what = "not all is simulated, so some sizes" if partly else "not simulated, so sizes"
    return Warn("not_exact", f"{what} are computed: {reason}")


def snapshot_unused(name: str, *, any_failed: bool) -> Warn:
    """The snapshot and the log are not about the same failure."""
    why = "no request in it has the size of the failed one"
    if not any_failed:
        why = "no request failed in it; write it after the error was raised"
    return Warn("snapshot_unused", f"{name} was not used: {why}")


def unknown_values(message: str) -> Warn:
    """The command stopped because of a value that no kernel has computed."""
    return Warn(
        "unknown_values",
        f"the command stopped because of a value ({message}): on an emulated GPU no kernel runs, "
        "so losses, gradients and norms are not computed; take the check out for this run",
    )


def gpu_unused() -> Warn:
    """No process of the command used CUDA, or none could be watched."""
    return Warn(
        "gpu_unused",
        "no process of the command used the GPU; if it should have, check that it trains on CUDA "
        "and does not start Python with -I, -E or -S",
    )


def ended_from_outside(text: str) -> Warn:
    """Something that the output does not show ended the command, and it was not memory."""
    return Warn("ended_from_outside", text)


def no_values(reason: str) -> Warn:
    """Not even small integers have values on this emulated GPU."""
    return Warn(
        "no_values",
        f"values of small tensors are unknown here ({reason}): masks, counts and lengths that a "
        "script reads back are 0, so it may take another way than on a GPU",
    )


def one_rank(ranks: int, *, failed: bool = False) -> Warn:
    """One rank stood for all; `failed` says that the command failed."""
    text = (
        f"only rank 0 of {ranks} ran; the others are taken to do what it did, and to need as much"
    )
    if failed:
        text += "; if ranks differ in this command, that may be why it failed: leave out --ranks 1"
    return Warn("one_rank", text)


def not_steady(steps: int) -> Warn:
    """Memory never repeated."""
    return Warn(
        "not_steady",
        f"memory differed from step to step, so all {steps:,} steps ran; --steps N stops earlier",
    )
