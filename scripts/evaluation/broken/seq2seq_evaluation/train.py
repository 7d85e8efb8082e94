"""Translation with T5: training fits, evaluation keeps its predictions on the GPU.

After https://github.com/huggingface/transformers/issues/13597.
"""

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments


class Rows(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        source = torch.randint(0, 1000, (320,))
        return {"input_ids": source, "labels": torch.randint(0, 1000, (256,))}


def metrics(predictions):
    return {"rows": len(predictions.label_ids)}


model = AutoModelForSeq2SeqLM.from_pretrained("google-t5/t5-base")
args = Seq2SeqTrainingArguments(
    "out",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=4,
    bf16=True,
    max_steps=12,
    save_strategy="no",
    report_to=[],
)
trainer = Seq2SeqTrainer(
    model, args, train_dataset=Rows(96), eval_dataset=Rows(96), compute_metrics=metrics
)
trainer.train()
trainer.evaluate()
