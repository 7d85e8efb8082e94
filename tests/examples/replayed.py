"""A training on GPUs of different sizes, with different settings: replayed.py FOLDER.

It writes the history of one that fits, history.pickle, and what happened to the others,
ended.json: [settings, rows, bytes that torch could reserve, whether it fitted, its reserved peak].
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

FOLDER = Path(sys.argv[1])
ROWS, WIDTH, STEPS = 48, 1024, 4
LENGTHS = (64, 96, 80, 128, 72, 112, 88, 120)
MIB = 1024**2


def trained(rows: int) -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)))
    head = nn.Linear(WIDTH, 4000)
    model = nn.Sequential(layers, head).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        for length in LENGTHS[step::STEPS]:
            x = torch.zeros(rows, length, WIDTH, device="cuda")
            words = torch.zeros(rows * length, dtype=torch.long, device="cuda")
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), words)
            loss.backward()
            del x, words, loss
        optimizer.step()
        optimizer.zero_grad()


def ended(settings: str, rows: int, limit: int | None) -> list[Any]:
    """One training: whether it fitted, and its reserved peak."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.memory._set_allocator_settings(settings)
    torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else limit / total)
    torch.cuda.reset_peak_memory_stats()
    fits = True
    try:
        trained(rows)
    except torch.OutOfMemoryError:
        fits = False
    peak = torch.cuda.max_memory_reserved()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()
    return [settings, rows, limit, fits, peak]


torch.zeros(1, device="cuda")
gc.collect()
torch.cuda.empty_cache()
torch.cuda.memory._record_memory_history(stacks="python")
trained(ROWS)
torch.cuda.memory._dump_snapshot(str(FOLDER / "history.pickle"))
torch.cuda.memory._record_memory_history(None)
gc.collect()
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.empty_cache()

results = []
for settings in ("expandable_segments:False", "expandable_segments:True"):
    whole = ended(settings, ROWS, None)
    results += [whole, ended(settings, ROWS // 2, None)]
    for less in (8, 160, 320, 480):
        results.append(ended(settings, ROWS, whole[4] - less * MIB))
(FOLDER / "ended.json").write_text(json.dumps(results))
