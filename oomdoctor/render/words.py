"""Words and numbers of a result that several parts of the page share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePath

from oomdoctor.records.job.costs import CalibratedBy, LearnedFactors
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.job.step_time import StepBound
from oomdoctor.records.report.plan import CardPick
from oomdoctor.records.report.run import Place
from oomdoctor.units import DASH, GIB, format_bytes, format_count, format_percent, format_rate

_EMPTY_WORDS = re.compile(r" (?:Generation|Edition)\b|(?<=RTX PRO \d{4}) Blackwell\b")
_BARS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"
METHODS = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
SWEPT_WORDS = {
    "sequence_length": "sequence length",
    "micro_batch_size": "micro-batch size",
    "lora_rank": "LoRA rank",
    "completion_length": "completion length",
    "num_generations": "number of generations",
    "vllm_gpu_memory_utilization": "share of vLLM in percent",
}


BOUND_WORDS: dict[StepBound, str] = {
    "compute": "arithmetic",
    "bandwidth": "memory bandwidth",
    "launch": "the host, which launches kernels",
    "communication": "links",
}
"""What a step spends most of its time on."""


def batch(result: ProbeResult | CardPick) -> str:
    """Micro-batch size x gradient accumulation steps: `4 x 8`; a dash if none was chosen.

    On several GPUs, also their number: `4 x 1 x 8`; those that share rows count once.
    """
    if result.micro_batch_size is None:
        return DASH
    ranks = result.world_size if isinstance(result, CardPick) else result.config.groups()
    gpus = f" x {ranks}" if ranks > 1 else ""
    return f"{result.micro_batch_size} x {result.gradient_accumulation_steps or DASH}{gpus}"


def is_estimate(result: ProbeResult) -> bool:
    """Whether the speed of a result is an estimate, as it also is beside an emulated peak."""
    return result.evidence == "predicted" or result.speed_state == "estimated"


def estimate(per_second: float | None, result: ProbeResult) -> str:
    """A rate of a result, with `~` before it if it is an estimate."""
    rate = format_rate(per_second)
    return f"~{rate}" if per_second is not None and is_estimate(result) else rate


def speed(result: ProbeResult, plus_minus: str) -> str:
    """Tokens per second for a column: `5,310 ±0.6%`, or `~5,310 ±28%` for an estimate."""
    rate = estimate(result.tokens_per_s, result)
    spread = _spread(result, plus_minus)
    return f"{rate} {spread}" if spread else rate


def about_speed(result: ProbeResult, plus_minus: str) -> str:
    """Tokens per second for a sentence: `~1,780 tokens/s (±33%)`; empty when unknown."""
    if result.tokens_per_s is None:
        return ""
    spread = _spread(result, plus_minus)
    text = f"{estimate(result.tokens_per_s, result)} tokens/s"
    return f"{text} ({spread})" if spread else text


def short_count(count: int) -> str:
    """`1M`, `2.5B`: as people type it."""
    text = format_count(count)
    number, suffix = text.rstrip("kMBT"), text[len(text.rstrip("kMBT")) :]
    return (number.rstrip("0").rstrip(".") if "." in number else number) + suffix


def counted(count: int, word: str, plural: str = "s") -> str:
    """`1 card`, `3 cards`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}{plural}"


def card_name(name: str) -> str:
    """A card's name without the words that tell nothing; `--gpu` accepts the short name."""
    short = name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("Tesla ")
    return _EMPTY_WORDS.sub("", short).replace(" Workstation", " WS")


def card_size(memory_bytes: int) -> str:
    """The memory that a card is sold with: `24 GiB`."""
    whole = memory_bytes % GIB == 0
    return f"{memory_bytes // GIB} GiB" if whole else format_bytes(memory_bytes)


def money(amount: float, currency: str) -> str:
    """`$0.19`, `1.20 EUR`, `0.0054`: cents, or two significant digits of less than ten cents."""
    digits = 2 if amount >= 0.1 or not amount else 1 - math.floor(math.log10(amount))
    whole, _, cents = f"{amount:,.{digits}f}".partition(".")
    text = f"{whole}.{cents.rstrip('0'):0<2}"
    if len(currency) == 1 and not currency.isalnum():
        return currency + text
    return f"{text} {currency}".rstrip()


def _spread(result: ProbeResult, plus_minus: str) -> str:
    """The relative spread of the measured rate, or the error of an estimate."""
    if result.tokens_per_s is None or result.tokens_per_s_spread is None:
        return ""
    digits = 0 if is_estimate(result) else 1
    return f"{plus_minus}{format_percent(result.tokens_per_s_spread, digits)}"


def file_line(where: Place) -> str:
    """The file without its folder, or the cell of a notebook, and the line."""
    file = PurePath(where.file)
    name = f"cell {file.stem}" if file.parent.name.startswith("ipykernel_") else file.name
    return f"{name}:{where.line}"


def curve(sizes: Sequence[int], *, signs: bool) -> str:
    """A bar for each size; the full height is the largest. Empty for fewer than two sizes."""
    full = max(sizes, default=0)
    if len(sizes) < 2 or full <= 0:
        return ""
    bars = _BARS if signs else _ASCII
    return "".join(bars[min(len(bars) - 1, int(size / full * len(bars)))] for size in sizes)


def calibrated_by_words(by: CalibratedBy, where: str) -> str:
    """The probes that correct the speeds of a card, which `where` names."""
    parts = []
    if by.timed_at is not None:
        on = f"{by.gpu_name}, of the same architecture" if by.relative else where
        parts.append(f"probe --calibrate of {by.timed_at[:10]} on {on}")
    if by.timed_at is None or by.factors != LearnedFactors():
        run = f"run {by.run}" if by.run else "an earlier probe"
        when = f" of {by.date[:10]}" if by.date else ""
        cap = f", capped to {format_bytes(by.cap_bytes)}" if by.cap_bytes else ""
        parts.append(f"{run}{when} on {where}{cap}")
    return "; ".join(parts)
