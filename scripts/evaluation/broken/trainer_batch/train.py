"""Full fine-tuning with rows of 1,024 tokens, 16 at a time, in bf16 autocast."""

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Rows(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (512,))
        return {"input_ids": ids, "labels": ids.clone()}


model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M")
args = TrainingArguments(
    "out", per_device_train_batch_size=16, bf16=True, max_steps=20, save_strategy="no", report_to=[]
)
Trainer(model, args, train_dataset=Rows()).train()
