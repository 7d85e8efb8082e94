"""Rows that end in padding, as a collator makes them that pads on the right.

Each padded row has one token of padding. That is what needs the most memory: a mask of all pairs
of tokens has the same size for any padding, and FlashAttention computes the other tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomdoctor.records.config import TrainConfig, padded_rows
from oomdoctor.records.model import Task
from oomdoctor.worker.protocol.unsupported import UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_TASKS = ("causal-lm", "masked-lm", "sequence-classification")
_IGNORED = -100
# What a collator has at a place of padding, by the name of the tensor.
_AT_PADDING = {"attention_mask": 0, "labels": _IGNORED, "completion_mask": 0}


def check_padding(model: Module, config: TrainConfig, task: Task, notes: list[str]) -> None:
    """Check that rows of a task can be padded; `notes` says what a mask costs.

    Raises:
        UnsupportedError: they cannot.
    """
    if config.padding == "none":
        return
    if task not in _TASKS:
        raise UnsupportedError(f"padding is for models that take rows of text, not for {task}")
    if config.attention == "sdpa":  # whatever the size: all sizes of a rung have one set of notes
        notes.append(
            "for padded rows sdpa needs a mask of all pairs of tokens; flash_attention_2 needs none"
        )


def padded(batch: dict[str, Any], config: TrainConfig, count: int, token: int) -> dict[str, Any]:
    """A batch of `count` micro-batches, whose rows end in `token` where the rung pads them."""
    import torch

    ids: torch.Tensor = batch["input_ids"]
    rows, length = ids.shape
    full = rows // count - padded_rows(config)  # the first rows of each micro-batch
    within = torch.arange(rows) % (rows // count)
    ends = (within >= full)[:, None] & (torch.arange(length) == length - 1)
    changed = {"input_ids": token, **_AT_PADDING}
    return {
        name: torch.where(ends, changed[name], tensor)
        if name in changed and tensor.shape == ids.shape
        else tensor
        for name, tensor in batch.items()
    }
