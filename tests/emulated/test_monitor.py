"""The monitor in real trainings on the emulated GPU: loops, the Trainer, a guard, two ranks."""

from __future__ import annotations

import json

from emulated_run import MODEL, Watched, torchrun

from oomdoctor.records.report.watch import LiveStep
from oomdoctor.system.store.live_logs import LiveRecord, read_log

TRAINING = (
    MODEL
    + """
import gc, json, logging, pathlib, weakref
from oomdoctor.monitor import MemoryCallback, guard, watch_memory
MIB = 2**20
facts = {}
net = model().cuda()
optimizer = torch.optim.AdamW(net.parameters())

def step(rows=8):
    loss = net(torch.randn(rows, 1024, device="cuda")).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# Peaks of steps leave those of the script alone.
step(1 << 17)
top = torch.cuda.max_memory_allocated()
with watch_memory(log="peaks.jsonl") as memory:
    for rows in (8, 1 << 14, 8):
        step(rows)
        memory.step()
facts["kept"] = torch.cuda.max_memory_allocated() == top
facts["accelerator"] = torch.accelerator.max_memory_allocated() == top
torch.cuda.reset_peak_memory_stats()
facts["reset"] = torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()

def loop(name, after, steps=20):
    with watch_memory(log=f"{name}.jsonl", total_steps=400) as memory:
        for number in range(steps):
            step()
            after(number)
            memory.step()
    facts[name] = [[a.kind, a.step, a.bytes_per_step, a.full_at_step] for a in memory.alerts]

kept = []
loop("clean", lambda n: None, 60)
loop("leak", lambda n: kept.append(torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")))
kept.clear()

class Node: pass
def circle(n):
    one = Node()
    one.itself, one.data = one, torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
gc.collect()
gc.disable()
loop("circles", circle)
gc.enable()
gc.collect()
loop("nearly_full", lambda n: kept.append(
    torch.empty(27 << 29, dtype=torch.uint8, device="cuda")) if n == 9 else None)
kept.clear()
torch.cuda.empty_cache()

# Batches that a DataLoader pinned are kept.
def pins():
    batches = []
    rows = torch.utils.data.TensorDataset(torch.zeros(24, 1 << 20))
    with watch_memory(log="pinned.jsonl") as memory:
        for (batch,) in torch.utils.data.DataLoader(rows, batch_size=1, pin_memory=True):
            batches.append({"rows": batch})
            step()
            memory.step()
    return [[a.kind, a.device, a.message] for a in memory.alerts]
facts["pinned"] = pins()

# A batch that does not fit is skipped, and leaves nothing behind.
memory = watch_memory(log="guarded.jsonl")
memory.start()
guarded = guard(skip=True, model=net, optimizer=optimizer, memory=memory)
left = []
def train():
    for rows in (8, 8, 1 << 21, 8):
        with guarded:
            x = torch.randn(rows, 1024, device="cuda")
            hidden = net[0](x)
            loss = net[1:](hidden).float().pow(2).mean()
            loss.backward()
        if not guarded.skipped:
            optimizer.step()
            optimizer.zero_grad()
        memory.step()
        x = hidden = loss = None
        left.append([guarded.skipped, torch.cuda.memory_allocated()])
train()
memory.close()
facts["guard"] = left
try:
    with guard():
        net(torch.randn(1 << 21, 1024, device="cuda"))
except torch.OutOfMemoryError as error:
    facts["error"] = str(error)
    del error
gc.collect()

# The Trainer, with what it logs.
from transformers import Trainer, TrainerCallback, TrainingArguments
class Task(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model()
    def forward(self, x):
        return {"loss": self.net(x).float().pow(2).mean()}
reported = []
class Reporter(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        reported.append(sorted(name for name in logs if name.startswith("oomdoctor/")))
arguments = TrainingArguments("out", max_steps=4, logging_steps=2, report_to=[], disable_tqdm=True,
                              save_strategy="no")
callback = MemoryCallback(log="trainer.jsonl")
Trainer(Task(), arguments, train_dataset=[{"x": torch.ones(1024)}] * 64,
        callbacks=[Reporter, callback]).train()
facts["reported"] = reported
pathlib.Path("facts.json").write_text(json.dumps(facts))
"""
)


def log(watched: Watched, name: str) -> LiveRecord:
    found = read_log(watched.folder / f"{name}.jsonl")
    assert found is not None
    return found


def test_a_training_is_watched_and_guarded(watched: Watched) -> None:
    report, _, error = watched.run("T4", TRAINING, options=("--steps", "all"))
    assert report.exit_code_of_command == 0, error
    facts = json.loads((watched.folder / "facts.json").read_text())

    # Peaks belong to their step, and those of the script stay as they were.
    assert facts["kept"] and facts["accelerator"] and facts["reset"]
    steps: tuple[LiveStep, ...] = log(watched, "peaks").steps
    peaks = [one.peak_allocated_bytes for one in steps]
    assert peaks[1] > 2 * peaks[2] > 0 and peaks[0] == peaks[2]
    assert log(watched, "peaks").header.gpu_name == "Tesla T4 (emulated)"

    # A leak is found with its slope; a clean loop, garbage and a full device are something else.
    assert facts["clean"] == []
    (kind, step, slope, full), *_ = facts["leak"]
    assert (kind, step, slope) == ("growth", 18, 20 * 2**20)
    assert 600 < full < 800
    assert [one[0] for one in facts["circles"]] == ["cycles"]
    assert [one[:2] for one in facts["nearly_full"]] == [["near_limit", 10]]
    assert [e.event for e in log(watched, "leak").events] == ["warning", "end"]

    # Pinned batches are host memory: the variable that keeps them is named, with its line.
    ((kind, device, message),) = facts["pinned"]
    assert (kind, device) == ("pinned", None) and "has grown by 4.00 MiB per step" in message
    lines = TRAINING.splitlines()
    filling = next(n for n, line in enumerate(lines, 1) if "batches.append(" in line)
    assert "`batches` keeps pinned tensors: " in message
    assert f"train.py:{filling}." in message

    # The batch that was skipped left nothing.
    before, _, skipped, after = facts["guard"]
    assert [before[0], skipped[0], after[0]] == [False, True, False]
    assert skipped[1] <= before[1] and after[1] == before[1]
    events = [(e.event, e.step) for e in log(watched, "guarded").events]
    assert events == [("oom", 2), ("skipped", 2), ("end", 4)]
    assert "oomdoctor: out of GPU memory" in facts["error"] and "Do this first" in facts["error"]
    assert "oomdoctor: batch skipped, 1 so far" in error

    # The Trainer's reporters see the metrics.
    assert len(log(watched, "trainer").steps) == 4
    assert log(watched, "trainer").header.total_steps == 4
    assert facts["reported"][0] and facts["reported"][0] == facts["reported"][1]
    assert facts["reported"][2] == []


RANKS = """
import json, os, sys, torch
import torch.distributed as dist
from oomdoctor.monitor import guard
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
# The batches that fail on rank 1, and where they do.
BAD = {2: "before", 3: "forward", 5: "backward", 6: "loss"}
now = None
sent = []

def fail(where):
    if now == where and rank == 1:
        torch.empty(300 << 30, dtype=torch.uint8, device="cuda")

class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        fail("forward")
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        fail("backward")
        return gradient

class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.linear = torch.nn.Linear(512, 512)
        self.fails = number == 3
    def forward(self, x):
        return Pass.apply(self.linear(x)) if self.fails else self.linear(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*map(Layer, range(6)))
        self.head = torch.nn.Linear(512, 64)
        self.register_buffer("count", torch.zeros(8))
    def forward(self, x):
        return self.head(self.layers(x))

def noting(name):
    original = getattr(dist, name)
    def noted(output, *args, **kwargs):
        sent.append([name, output.numel()])
        return original(output, *args, **kwargs)
    setattr(dist, name, noted)

def bucket_hook(_, bucket):
    sent.append(["bucket", bucket.buffer().numel()])
    buffer = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda f: f.value()[0])

def train(net):
    global now
    optimizer = torch.optim.AdamW(net.parameters())
    guarded = guard(skip=True, model=net, optimizer=optimizer)
    steps = []
    for number in range(8):
        now = BAD.get(number)
        sent.clear()
        with guarded:
            fail("before")
            loss = net(torch.randn(64, 512, device="cuda")).float().pow(2).mean()
            fail("loss")
            loss.backward()
        skipped = guarded.skipped
        if not skipped:
            optimizer.step()
            optimizer.zero_grad()
        steps.append([skipped, list(sent)])
    return steps

for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
    noting(name)
copied = torch.nn.parallel.DistributedDataParallel(Net().cuda(), device_ids=[rank], bucket_cap_mb=1)
copied.register_comm_hook(None, bucket_hook)
found = {"ddp": train(copied)}
from torch.distributed.fsdp import fully_shard
net = Net().cuda()
for layer in net.layers:
    fully_shard(layer)
found["fsdp"] = train(fully_shard(net))
with open(f"rank{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


def test_all_ranks_skip_a_batch_together(watched: Watched) -> None:
    report, _, error = watched.run("2xT4", RANKS, *torchrun(2), options=("--steps", "all"))
    assert report.exit_code_of_command == 0, error
    first, second = (json.loads((watched.folder / f"rank{n}.json").read_text()) for n in range(2))
    for kind in ("ddp", "fsdp"):
        assert [one[0] for one in first[kind]] == [n in (2, 3, 5, 6) for n in range(8)], kind
        # Both ranks took part in the same collectives, in the same order.
        assert first[kind] == second[kind], kind
        assert all(sent for _, sent in first[kind])
        assert first[kind][7] == first[kind][4]
    assert error.count("batch skipped on rank 1") == 16
