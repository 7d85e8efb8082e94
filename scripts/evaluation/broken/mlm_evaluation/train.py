"""Masked language modeling whose evaluation keeps the logits of every row on the GPU.

After https://github.com/huggingface/transformers/issues/12878.
"""

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments


class Rows(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (512,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def metrics(predictions):
    return {"rows": len(predictions.label_ids)}


model = AutoModelForMaskedLM.from_pretrained("google-bert/bert-base-uncased")
args = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    bf16=True,
    eval_strategy="epoch",
    save_strategy="no",
    max_steps=20,
    report_to=[],
)
Trainer(model, args, train_dataset=Rows(80), eval_dataset=Rows(96), compute_metrics=metrics).train()
