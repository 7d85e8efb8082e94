"""A training script of an image classifier as people write it, with random pictures.

    python image_training.py CONFIG DTYPE ACCUMULATION_STEPS METHOD

CONFIG is the model's configuration as JSON, METHOD is full or lora.
"""

from __future__ import annotations

import json
import sys

import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForImageClassification, Trainer, TrainingArguments

MICRO_BATCH_SIZE, STEPS = 2, 3
NEW = tuple(map(int, transformers.__version__.split(".")[:2])) >= (4, 56)
DTYPE = "dtype" if NEW else "torch_dtype"


class Pictures(torch.utils.data.Dataset):
    """Noise with labels."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor | int]:
        return {"pixel_values": torch.rand(3, self.size, self.size), "labels": number % 2}


def main(words: list[str]) -> None:
    """Train for a few steps."""
    config = AutoConfig.for_model(**json.loads(words[0]))
    dtype, accumulation, method = getattr(torch, words[1]), int(words[2]), words[3]
    model = AutoModelForImageClassification.from_config(config, **{DTYPE: dtype})
    if method == "lora":
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    arguments = TrainingArguments(
        output_dir="trained",
        per_device_train_batch_size=MICRO_BATCH_SIZE,
        gradient_accumulation_steps=accumulation,
        optim="adamw_torch_fused",
        max_steps=STEPS,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    pictures = Pictures(MICRO_BATCH_SIZE * accumulation * STEPS, config.image_size)
    Trainer(model=model, args=arguments, train_dataset=pictures).train()


if __name__ == "__main__":
    main(sys.argv[1:])
