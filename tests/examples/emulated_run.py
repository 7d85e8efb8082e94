"""Runs training scripts under `oomdoctor run`, and scripts that several tests take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report

MODEL = """
import torch
def model(layers=4, width=1024):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU())
            for _ in range(layers)
        )
    )
"""
LOOP = (
    MODEL
    + """
net = model().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(9):
    for _ in range(ACCUMULATE):
        loss = net(torch.randn(ROWS, 1024, device="cuda")).float().pow(2).mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
print("the end")
"""
)
RANKS = (
    MODEL
    + """
import os, sys
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
net = model().cuda()
if sys.argv[1] == "ddp":
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])
else:
    from torch.distributed.fsdp import fully_shard
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(9):
    net(torch.randn(8, 1024, device="cuda")).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {rank} step {step}\\n", end="", flush=True)
"""
)

RUN = [sys.executable, "-m", "oomdoctor", "run", "--report", "report.json", "--emulate"]


class Watched:
    """Runs scripts under `oomdoctor run` and reads the reports."""

    def __init__(self, folder: Path, python: Path, cache: Path) -> None:
        self.folder, self.python = folder, python
        self.sessions = cache / "oomdoctor" / "sessions"
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(cache),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": path,
        }

    def start(self, gpus: str, script: str, *words: str, options: tuple[str, ...] = ()) -> Any:
        (self.folder / "train.py").write_text(script)
        command = [*(words or ("python", "train.py"))]
        return subprocess.Popen(
            [*RUN, gpus, *options, "--", *command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, gpus: str, script: str, *words: str, options: tuple[str, ...] = ()
    ) -> tuple[Report, str, str]:
        out, error = self.start(gpus, script, *words, options=options).communicate(timeout=280)
        report = self.folder / "report.json"
        assert report.exists(), error
        return loads(Report, report.read_text()), out, error


def loop(rows: int = 8, accumulate: int = 1) -> str:
    """A training of nine steps on rows of 1,024 numbers."""
    return LOOP.replace("ROWS", str(rows)).replace("ACCUMULATE", str(accumulate))


def torchrun(ranks: int, *words: str) -> tuple[str, ...]:
    """The command that runs the script in so many processes."""
    return ("torchrun", "--standalone", "--nproc-per-node", str(ranks), "train.py", *words)
