"""The same training as train.py, with the settings of a configuration that fits an RTX 4090."""

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

MODEL, LENGTH = "Qwen/Qwen2.5-1.5B", 2048


def main() -> None:
    """Train some steps."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    ids = torch.randint(0, model.config.vocab_size, (64, LENGTH))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        gradient_checkpointing=True,
        optim="adamw_bnb_8bit",
        bf16=True,
        report_to=[],
        save_strategy="no",
    )
    Trainer(model, arguments, train_dataset=rows).train()


if __name__ == "__main__":
    main()
