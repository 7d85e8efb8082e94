"""The programs that train with GRPO and an engine on the same GPUs, a row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.package_data import rows_of

Scores = Literal["completion", "by_row", "cross_entropy", "log_softmax"]


@dataclass(frozen=True, slots=True)
class Rollouts:
    """One value of `rl_program`, and `source`, the release that its facts were read from.

    `scores` is how its step computes log-probabilities: of the completion alone; or of all tokens,
    by a softmax for a token at a time, by cross-entropy of float32 logits, or by a softmax of all
    float32 logits. Two of them take the kernel of flash-attn where it is installed: the package
    may require it, or the class of its critic.
    `reference` is where the reference model is: on the `card` in the process that trains, there in
    a second `process`, or in `host` memory. `processes` counts those on a card, each of which has a
    CUDA context, without those of other models, which come on top with `own_processes`.
    `sync_bytes` is the buffer by which weights go to the engine. `copies` is what is copied for
    that where nothing is gathered: a parameter at a time, or all.
    """

    name: str
    source: str
    scores: Scores = "completion"
    reference: Literal["card", "process", "host"] = "card"
    processes: int = 1
    own_processes: bool = False
    sync_bytes: int = 0
    copies: Literal["none", "parameter", "whole"] = "none"
    requires_flash_attention: bool = False
    critic_takes_flash_attention: bool = False


ROLLOUTS = {row.name: row for row in rows_of(Rollouts, "rollouts.toml")}
