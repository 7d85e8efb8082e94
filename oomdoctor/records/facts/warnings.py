"""Every warning of a report: one function each, so that a code has one wording.

Warn only where the reader should do or know something. `CODES` says when each code is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from oomdoctor.records.machine import GpuProcess
from oomdoctor.records.report import Warn
from oomdoctor.units import format_bytes

NoteCode = Literal["model_source", "model", "slurm", "log"]

MEMORY_NOT_FREE = "memory_not_free"
CODES = {
    "sequence_length": "the model has fewer positions than the sequence length asked for",
    "no_card": "plan was given a size of memory, so speed cannot be estimated",
    "gpu_variant": "the name of a card stands for several; the smallest was taken",
    "not_nvidia": "plan was given a card that is not NVIDIA's",
    "cap_above_free": "--vram is more than the free memory",
    "other_processes": "other processes use memory of the same GPU",
    MEMORY_NOT_FREE: "memory that was free at the start is in use now",
    "moe_routing": "a mixture of experts is trained with synthetic weights",
    "time_limit": "the time limit ended the run",
    "model_source": "a note about where the facts of the model come from (probe and plan)",
    "model": "a note about where the facts of the model come from (explain)",
    "slurm": "what Slurm's accounting says about a job",
    "log": "a note about a log, such as a part that was left out",
    "(an error's code)": "explain could not read one of several inputs; the code is that error's",
}


def sequence_lowered(model: str, limit: int, asked: int) -> Warn:
    """The rungs have longer sequences than the model has positions."""
    return Warn(
        "sequence_length",
        f"{model} has {limit:,} positions: sequence length lowered from {asked:,} to {limit:,}",
    )


def sweep_ends(model: str, limit: int) -> Warn:
    """A sweep over lengths goes beyond the model's positions."""
    return Warn("sequence_length", f"{model} has {limit:,} positions: the sweep ends there")


def not_a_card(sizes: Sequence[str], *, ranked_by_speed: bool) -> Warn:
    """Sizes were given instead of cards."""
    are = "is a size, not a card" if len(sizes) == 1 else "are sizes, not cards"
    ranked = ", so rungs are ranked by peak memory" if ranked_by_speed else ""
    return Warn(
        "no_card",
        f"{', '.join(sizes)} {are}: speed cannot be estimated{ranked}; for speeds name a card, "
        "such as --gpu 'RTX 4090'",
    )


def smallest_variant(asked: str, taken: str, others: Iterable[str]) -> Warn:
    """A name stands for several cards."""
    return Warn(
        "gpu_variant",
        f"{asked!r} could be several cards; using the smallest, {taken} "
        f"(others: {', '.join(others)})",
    )


def not_nvidia(cards: Iterable[str]) -> Warn:
    """Cards of other vendors are simulated with CUDA's kernels."""
    return Warn(
        "not_nvidia",
        f"{', '.join(cards)}: simulated with CUDA's kernels; on ROCm memory use may differ",
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


def quoted(code: NoteCode, texts: Iterable[str]) -> list[Warn]:
    """Texts of others (Slurm, a source of models) as they are."""
    return [Warn(code, text) for text in texts]


def not_read(code: str, message: str) -> Warn:
    """One of several inputs could not be read; `code` is that of the error."""
    return Warn(code, f"skipped: {message}")
