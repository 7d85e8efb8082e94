"""Batches of chosen and rejected sequences, as TRL's collators for DPO and reward models make them.

The chosen sequences come first, then the rejected ones: (2 x pairs, length) of full-length rows
(TRL 1.16 `DataCollatorForPreference` in `dpo_trainer` and `reward_trainer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.records.config import TrainConfig, scored_tokens

if TYPE_CHECKING:
    import torch


def pairs_of(ids: torch.Tensor, config: TrainConfig) -> dict[str, torch.Tensor]:
    """The tensors of a whole batch with rows `ids` of (2 x pairs, length), by name."""
    import torch

    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if config.objective == "dpo":
        scored = (
            torch.arange(config.sequence_length) >= config.sequence_length - scored_tokens(config)
        ).to(torch.int64)
        batch["completion_mask"] = scored.repeat(len(ids), 1)
        if config.reference == "precomputed":
            for name in ("ref_chosen_logps", "ref_rejected_logps"):
                batch[name] = torch.full((len(ids) // 2,), -1.0)
    return batch
