"""`run --ranks 1`: one rank stands for all, under the launchers that start the others."""

from __future__ import annotations

import json

import pytest
from emulated_run import MODEL, RANKS, Watched, torchrun
from weekly_rows import weekly

ALONE = (
    MODEL
    + """
import json, os
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group()
n, told = dist.get_world_size(), {}
told["world"] = n
x = torch.tensor([3, 10], device="cuda"); dist.all_reduce(x); told["sum"] = x.tolist()
objects = [None] * n
dist.all_gather_object(objects, {"k": [1, 2]}); told["gathered"] = [len(objects), objects[-1]]
dist.gather_object("text", objects, 0); told["to_first"] = [len(objects), objects[-1]]
x = torch.empty(n, dtype=torch.long, device="cuda")
dist.all_to_all_single(x, torch.arange(n, device="cuda") + 7); told["alike"] = x.tolist()
group = dist.new_group(backend="gloo")
x = torch.ones(1); dist.all_reduce(x, group=group)
dist.all_gather_object(objects, 5, group=group); dist.barrier(group=group)
told["gloo"] = [x.item(), len(objects), objects[-1]]
mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("a", "b"))
x = torch.ones(1, dtype=torch.long, device="cuda"); dist.all_reduce(x, group=mesh["b"].get_group())
told["mesh"] = x.item()
try:
    dist.broadcast_object_list([None], 1)
except RuntimeError as error:
    told["refused"] = str(error)
# The first of two ranks holds no state of the bias.
pair = dist.new_group([0, 1])
old = FullyShardedDataParallel(torch.nn.Linear(4, 4).cuda(), pair, use_orig_params=True)
states = torch.optim.AdamW(old.parameters())
old(torch.ones(2, 4, device="cuda")).sum().backward()
states.step()
try:
    FullyShardedDataParallel.optim_state_dict(old, states)
except RuntimeError as error:
    told["parts"] = str(error)
net = model().cuda()
for layer in net:
    fully_shard(layer)
fully_shard(net)
dcp.save({"net": net.state_dict()}, checkpoint_id="saved")
told["saved"] = os.path.exists("saved/.metadata")
print(json.dumps(told), flush=True)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(9):
    net(torch.randn(8, 1024, device="cuda")).float().pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
)
ACCELERATED = """
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
accelerator = Accelerator(gradient_accumulation_steps=2)
accelerator.print("ranks", accelerator.num_processes)
net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
optimizer = torch.optim.AdamW(net.parameters())
rows = torch.utils.data.TensorDataset(torch.randn(100, 1024))
train = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
test = torch.utils.data.DataLoader(rows, batch_size=7)
net, optimizer, train, test = accelerator.prepare(net, optimizer, train, test)
for (x,) in train:
    with accelerator.accumulate(net):
        accelerator.backward(net(x).float().pow(2).mean())
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
with torch.no_grad():
    seen = sum(len(accelerator.gather_for_metrics(net(x))) for (x,) in test)
accelerator.print("seen", seen, len(gather_object([accelerator.process_index])))
accelerator.wait_for_everyone()
broadcast_object_list([{"a": 1}])
accelerator.save_model(accelerator.unwrap_model(net), "out")
accelerator.save_state("state")
accelerator.print("the end")
"""
UNLIKE = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
x = torch.ones(1, dtype=torch.long, device="cuda")
dist.all_reduce(x)
dist.broadcast_object_list([None], 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [weekly("ddp"), "fsdp"])
def test_one_rank_needs_what_it_needs_among_all(watched: Watched, kind: str) -> None:
    words = torchrun(4, kind)
    (alone,) = watched.run("4xT4", RANKS, *words, options=("--ranks", "1"))[0].ranks
    first = watched.run("4xT4", RANKS, *words)[0].ranks[0]
    assert alone.peak_allocated_bytes == first.peak_allocated_bytes
    assert alone.peak_reserved_bytes == first.peak_reserved_bytes
    assert alone.steps_memory == first.steps_memory


def test_one_rank_stands_for_64(watched: Watched) -> None:
    report, out, error = watched.run("64xT4", ALONE, *torchrun(64), options=("--ranks", "1"))
    assert report.exit_code_of_command == 0, error
    (rank,) = report.ranks
    assert (rank.rank, rank.stopped) == (0, "steady")
    # The whole model, then its parts: less than its weights, gradients and two moments.
    assert rank.peak_allocated_bytes < 3 * 4 * 4 * (1024 * 1024 + 1024)
    assert [warning.code for warning in report.warnings] == ["one_rank"]
    assert "only rank 0 of 64 ran" in error
    told = json.loads(out.splitlines()[0])
    assert told == {
        "world": 64,
        "sum": [192, 640],
        "gathered": [64, {"k": [1, 2]}],
        "to_first": [64, "text"],
        "alike": [7] * 64,
        "gloo": [64.0, 64, 5],
        "mesh": 8,
        "refused": "oomdoctor: broadcast_object_list from rank 1 needs the other ranks, which do "
        "not run: leave out --ranks 1",
        "parts": "oomdoctor: the optimizer state of FullyShardedDataParallel needs the other "
        "ranks, which do not run: leave out --ranks 1",
        "saved": True,
    }


@pytest.mark.slow
def test_accelerate_runs_to_its_end(watched: Watched) -> None:
    words = ("accelerate", "launch", "--multi_gpu", "--num_processes", "4", "train.py")
    report, out, error = watched.run(
        "4xT4", ACCELERATED, *words, options=("--ranks", "1", "--steps", "all")
    )
    assert out == "ranks 4\nseen 100 4\nthe end\n", error
    (rank,) = report.ranks
    assert (report.exit_code, rank.rank, rank.steps) == (0, 0, 2)
    assert (watched.folder / "out" / "model.safetensors").exists()
    assert (watched.folder / "state" / "optimizer.bin").exists()


def test_a_failure_says_that_all_ranks_may_not_fail(watched: Watched) -> None:
    report, _, error = watched.run("2xT4", UNLIKE, *torchrun(2), options=("--ranks", "1"))
    assert report.exit_code == 1
    assert "broadcast_object_list from rank 1 needs the other ranks" in error
    assert "if ranks differ in this command, that may be why it failed" in error
    (line,) = report.next_commands
    assert "--ranks" not in line and line.endswith(" ".join(torchrun(2)))
