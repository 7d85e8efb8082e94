"""The claim about ZeRO on several GPUs."""

from __future__ import annotations

from claims.claim import LLAMA, Claim, Finding, gb, rung
from claims.runs import Answers, Training

_GPUS = 8
_SAID = {"zero3": 14e9, "zero2": 56e9, "zero1": 98e9, "ddp": 112e9}
_WORDS = {"zero3": "ZeRO-3", "zero2": "ZeRO-2", "zero1": "ZeRO-1", "ddp": "DDP"}


def _zero(found: Answers) -> Finding:
    needs = {name: found.best(f"shard-{name}").device_bytes or 0 for name in _SAID}
    listed = ", ".join(f"{_WORDS[name]} {gb(needs[name])}" for name in _SAID)
    right = [name for name, size in _SAID.items() if abs(needs[name] / size - 1) < 0.1]
    return Finding(
        "true" if len(right) == len(_SAID) else "partly true" if right else "false",
        f"With sequences of 2,048 tokens, checkpointing and a micro-batch of 1, a GPU needs: "
        f"{listed}.",
        "ZeRO-1 shards the states, which are 12 "
        "of the 16 bytes, and ZeRO-2 the gradients too; both were said to need far more than they "
        "do. On top come buffers, the weights that are gathered, activations and the logits. "
        "DDP is in 32-bit weights under autocast and also has a copy of the gradients in buckets.",
    )


def _training(name: str) -> Training:
    words = "weights_dtype=float32,autocast_dtype=bfloat16"
    if name != "ddp":
        words = "weights_dtype=bfloat16"
    return Training(
        f"shard-{name}",
        LLAMA,
        f"{words},sharding={name},world_size={_GPUS},activation_checkpointing=full,"
        + rung(effective_batch_size=_GPUS),
        gpus=_GPUS,
    )


SEVERAL = (
    Claim(
        "zero",
        "On 8 GPUs, a 7B model needs 14 GB per GPU with ZeRO-3, 56 GB with ZeRO-2, 98 GB with "
        "ZeRO-1 and 112 GB with DDP.",
        tuple(_training(name) for name in _SAID),
        _zero,
    ),
)
