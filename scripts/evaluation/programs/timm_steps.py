"""Run two training steps of each row of a file of published rates, as timm's benchmark.py does.

    python timm_steps.py ROWS NOTES

Runs on the emulated GPU, with what it launches noted. Copies the notes of this process to the
folder NOTES, with `cases.jsonl`: the id of each row that ran, in order. All rows share an optimizer
object, so that the steps of row N are 2N - 1 and 2N.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import timm
import torch


def main(rows: Path, notes: Path) -> None:
    """Run all rows, then copy the notes."""
    torch.backends.cuda.matmul.allow_tf32 = True  # as benchmark.py sets it
    torch.backends.cudnn.benchmark = True
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01, momentum=0.9)
    with (notes / "cases.jsonl").open("w") as cases:
        for line in rows.read_text().splitlines():
            row = json.loads(line)
            _two_steps(row, optimizer)
            cases.write(json.dumps({"id": row["id"]}) + "\n")
    for file in Path(os.environ["OOMDOCTOR_EMULATED_LAUNCHES"]).glob(f"*-{os.getpid()}"):
        shutil.copy(file, notes / file.name.partition("-")[0])


def _two_steps(row: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    model = timm.create_model(row["model"].partition("/")[2], num_classes=1000)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # timm had no fused attention when the rows were measured
    model = model.cuda()
    size, count = row["image_size"], row["micro_batch"]
    images = torch.randn(count, 3, size, size, device="cuda")
    classes = torch.randint(0, 1000, (count,), device="cuda")
    if row["kernels"] == "channels_last":
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer.state.clear()
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": list(model.parameters())})
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
