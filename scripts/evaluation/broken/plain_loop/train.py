"""A plain training loop: no Trainer, no file of settings."""

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

ROWS = 24
LENGTH = 512

model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M").to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
rows = torch.randint(0, 1000, (480, LENGTH))
for batch in DataLoader(rows, batch_size=ROWS):
    batch = batch.to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
