"""What a claim is: the words of articles, the trainings that check it, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from claims.runs import Answers, Need, Training

Verdict = Literal["true", "partly true", "false"]

LLAMA = "meta-llama/Llama-2-7b-hf"
QWEN = "Qwen/Qwen2.5-7B"
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """What is true, with its figures, and why."""

    verdict: Verdict
    truth: str
    why: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the table. `check` computes the finding from what the trainings need."""

    key: str
    said: str
    trainings: tuple[Training, ...]
    check: Callable[[Answers], Finding]


def rung(length: int = 2048, batch: int = 1, **values: str | int) -> str:
    """The words of `--rung`, for one micro-batch a step."""
    own = {"micro_batch_size": batch, "effective_batch_size": batch} | values
    return ",".join(f"{key}={value}" for key, value in {"sequence_length": length, **own}.items())


def gb(size: float | None) -> str:
    """Decimal gigabytes, as articles count them."""
    assert size is not None
    return f"{size / 1e9:.1f} GB"


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{share:.0%}"


def device(need: Need) -> int:
    """What the process takes of the GPU, the CUDA context included."""
    assert need.device_bytes is not None
    return need.device_bytes


def activations(need: Need) -> int:
    """What a step holds at its peak beside the weights and states: activations and logits."""
    return need.allocated_bytes - need.weights_bytes - need.optimizer_bytes
