"""Random batches with full-length rows for each task, with a fixed seed.

One tensor holds the whole effective batch and is cut into micro-batches, so the tokens are the same
for every micro-batch size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import Task

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

MASKED_SHARE = 0.15  # of tokens have a label in masked language modelling (BERT, section 3.1)
Batch = dict[str, "torch.Tensor"]


def micro_batches(
    config: TrainConfig,
    task: Task,
    model_config: PretrainedConfig,
    device: torch.device,
    *,
    count: int,
    seed: int,
) -> list[Batch]:
    """`count` micro-batches on `device`, as a Trainer's collator would return them.

    Text: `input_ids`, `attention_mask` and `labels` of (micro-batch, sequence length), int64.
    Images: `pixel_values` of (micro-batch, channels, height, width) and `labels` of (micro-batch,).
    """
    size = config.micro_batch_size
    assert isinstance(size, int)
    whole = _whole_batch(config, task, model_config, size * count, seed)
    return [
        {name: tensor[i * size : (i + 1) * size].to(device) for name, tensor in whole.items()}
        for i in range(count)
    ]


def _whole_batch(
    config: TrainConfig, task: Task, model_config: PretrainedConfig, rows: int, seed: int
) -> Batch:
    import torch

    generator = torch.Generator().manual_seed(seed)
    if task == "image-classification":
        size = model_config.image_size
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        channels = getattr(model_config, "num_channels", 3)
        return {
            "pixel_values": torch.randn(rows, channels, height, width, generator=generator),
            "labels": torch.randint(model_config.num_labels, (rows,), generator=generator),
        }
    text = model_config.get_text_config()
    shape = (rows, config.sequence_length)
    ids = torch.randint(_first_plain_token(text), text.vocab_size, shape, generator=generator)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if task == "sequence-classification":
        batch["labels"] = torch.randint(model_config.num_labels, (rows,), generator=generator)
    elif task == "masked-lm":
        chosen = torch.rand(shape, generator=generator) < MASKED_SHARE
        chosen[:, 0] = True  # a row without a label would make the loss NaN
        batch["labels"] = torch.where(chosen, ids, torch.full_like(ids, -100))
    else:
        batch["labels"] = ids.clone()
    return batch


def logits_shape(
    config: TrainConfig, task: Task, model_config: PretrainedConfig
) -> tuple[int, int]:
    """(vocabulary, tokens of a micro-batch) if the model returns scores per token, else (0, 0)."""
    if task not in ("causal-lm", "masked-lm", "seq2seq-lm"):
        return 0, 0
    size = config.micro_batch_size
    assert isinstance(size, int)
    # Shifting the labels drops one position per row.
    tokens = size * (config.sequence_length - 1)
    return int(model_config.get_text_config().vocab_size), tokens


def _first_plain_token(text_config: PretrainedConfig) -> int:
    """The first token after padding, because a full-length row has no padding.

    RoBERTa and similar models count positions from padding, so it must not appear by chance.
    """
    pad = getattr(text_config, "pad_token_id", None)
    return pad + 1 if isinstance(pad, int) and 0 <= pad < text_config.vocab_size // 2 else 0
