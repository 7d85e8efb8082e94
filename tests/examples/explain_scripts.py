"""Small trainings as people write them. A marker `#: NAME` tells what its line is about.

`MODEL` stands for the folder of a tiny Llama, `OUT` for a folder to write to.
"""

from __future__ import annotations

_HEAD = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.manual_seed(0)
ids = torch.randint(0, 256, (4, 16))
"""

PLAIN = (
    _HEAD
    + """
model = AutoModelForCausalLM.from_pretrained("MODEL", ATTENTION)  #: load
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, FUSED)


def train_one(batch):
    logits = model(input_ids=batch).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


for step in range(2):
    train_one(ids)



@torch.no_grad()
def evaluate(batch):
    model.eval()
    return model(input_ids=batch, labels=batch).loss


evaluate(ids)
model.generate(ids[:1, :4], max_new_tokens=3, do_sample=False, pad_token_id=0)  #: generate
"""
)

TRAINER = (
    _HEAD
    + """
from transformers import Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("MODEL", ATTENTION)  #: load
ADAPTER
data = [{"input_ids": row, "labels": row} for row in ids]
arguments = TrainingArguments(
    output_dir="OUT", per_device_train_batch_size=2, per_device_eval_batch_size=2, max_steps=2,
    use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
    CHECKPOINTING
)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
trainer.train()
trainer.evaluate()
"""
)

ACCELERATE = (
    _HEAD
    + """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = AutoModelForCausalLM.from_pretrained("MODEL")  #: load
model.train()
ADAPTER
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
loader = torch.utils.data.DataLoader(ids, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
)

LORA = """
from peft import LoraConfig, get_peft_model
model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
"""

QLORA = (
    _HEAD
    + """
import bitsandbytes
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig

model = AutoModelForCausalLM.from_pretrained(  #: load
    "MODEL", dtype=torch.float32, device_map="cpu",  #: load
    quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),  #: load
)  #: load
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(1):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
"""
)

OWN_MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())

    def forward(self, x):
        return x + self.inner(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def main():
    model = Net()
    optimizer = torch.optim.OPTIMIZER
    criterion = nn.CrossEntropyLoss()
    images, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    for step in range(2):
        out = model(images)
        loss = criterion(out, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
"""

RANKS = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

dist.init_process_group(
    "gloo", init_method=os.environ["STORE"], rank=int(os.environ["RANK"]), world_size=2
)
model = DistributedDataParallel(AutoModelForCausalLM.from_pretrained("MODEL"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, 256, (4, 16))
for step in range(2):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
"""
