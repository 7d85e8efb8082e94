"""`run` from end to end: unchanged scripts on the emulated GPU.

Each script is an ordinary one. Models are tiny, so a run takes seconds, most of them imports.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import jsonschema
import pytest
from emulated_run import RANKS, Watched, loop, torchrun
from weekly_rows import weekly

from oomdoctor.commands.devices.cards import card_named, of_ranks
from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import RunDevice
from oomdoctor.units import MIB

TRAINER = """
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        ids = torch.randint(0, 100, (64,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}

model = LlamaForCausalLM(LlamaConfig(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=128, vocab_size=100))
args = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=2,
    max_steps=12, report_to=[], save_strategy="no", disable_tqdm=True)
trainer = Trainer(model, args, train_dataset=Rows())
trainer.train()
trainer.save_model("out")
print("saved after", trainer.state.global_step)
"""


def _line(script: str, text: str) -> int:
    return next(n for n, line in enumerate(script.splitlines(), 1) if text in line)


def test_a_plain_loop_stops_once_memory_repeats(watched: Watched) -> None:
    script = loop()
    report, out, error = watched.run("T4", script)
    (rank,) = report.ranks
    assert (report.status, report.exit_code, report.exit_code_of_command) == ("ok", 0, 0)
    assert (rank.outcome, rank.stopped) == ("fits", "steady")
    assert 2 <= rank.steps <= 5
    assert out.split() == [word for i in range(rank.steps - 1) for word in ("step", str(i))]
    # Weights, gradients and two moments of four layers of 1024 x 1024 in float32.
    states = 4 * 4 * 4 * (1024 * 1024 + 1024)
    assert states < rank.peak_allocated_bytes < states + 80 * MIB
    assert rank.peak_device_bytes is not None and rank.headroom_bytes is not None
    assert report.device is not None and report.device.usable_bytes is not None
    left = report.device.usable_bytes - rank.peak_reserved_bytes
    assert left - 4 * MIB <= rank.headroom_bytes <= left
    assert rank.where is not None
    assert (rank.where.file, rank.where.function) == ("train.py", "<module>")
    assert f"stopped after step {rank.steps}: memory repeats" in error
    assert report.smallest_gpu is not None
    assert max(p.allocated_bytes for p in rank.memory) <= rank.peak_allocated_bytes
    schema = Path(__file__).parents[2] / "oomdoctor" / "data" / "report.schema.json"
    document = json.loads((watched.folder / "report.json").read_text())
    jsonschema.validate(document, json.loads(schema.read_text()))
    assert rank.steps_memory[-1].peak_allocated_bytes == rank.steps_memory[-2].peak_allocated_bytes


def test_steps_are_optimizer_steps_not_backward_passes(watched: Watched) -> None:
    report, out, _ = watched.run("T4", loop(accumulate=3), options=("--steps", "2"))
    assert (report.ranks[0].steps, report.ranks[0].stopped) == (2, "steps")
    assert out == "step 0\n"


def test_the_trainer_stops_as_a_callback_stops_it_and_saves(watched: Watched) -> None:
    report, out, _ = watched.run("RTX 4090", TRAINER)
    (rank,) = report.ranks
    assert (rank.outcome, rank.stopped) == ("fits", "steady")
    assert f"saved after {rank.steps}" in out and rank.steps < 12
    assert (watched.folder / "out" / "model.safetensors").exists()
    assert rank.where is not None
    assert rank.where.line == _line(TRAINER, "trainer.train()")


def test_running_out_of_memory(watched: Watched) -> None:
    script = loop(rows=40_000)
    report, _, error = watched.run("1GiB", script, options=("--stop-at-oom",))
    (rank,) = report.ranks
    assert (report.status, report.exit_code) == ("no", 1)
    assert rank.outcome == "oom" and rank.oom is not None and not rank.oom.caught
    assert rank.oom.phase == "forward" and rank.oom.step == 1 and not rank.oom.went_past
    assert rank.oom.where is not None and rank.oom.where.line == _line(script, "loss = net(")
    assert rank.oom.least_bytes > rank.peak_allocated_bytes
    assert report.smallest_gpu is None
    (diagnosis,) = report.diagnoses
    assert diagnosis.is_oom and diagnosis.resource == "gpu" and diagnosis.remedies
    assert diagnosis.numbers.requested_bytes == rank.oom.requested_bytes
    assert "Out of GPU memory" in error and "Do this first" in error
    assert report.next_commands[0] == "oomdoctor run --emulate '1.00 GiB' -- python train.py"


def test_past_the_limit_it_shows_all_that_is_needed(watched: Watched) -> None:
    """The first request is the one at which a card runs out, and the need that of a large card."""
    script = loop(rows=40_000)
    stopped, _, _ = watched.run("1GiB", script, options=("--stop-at-oom",))
    roomy, _, _ = watched.run("T4", script)
    report, out, error = watched.run("1GiB", script)
    (rank,), (large,), (real,) = report.ranks, roomy.ranks, stopped.ranks
    assert (report.status, report.exit_code, report.exit_code_of_command) == ("no", 3, 0)
    assert rank.outcome == "oom" and rank.oom is not None and rank.oom.went_past
    assert real.oom is not None
    same = ("requested_bytes", "free_bytes", "total_bytes", "phase", "where", "step", "module")
    for name in (*same, "least_bytes"):
        assert getattr(rank.oom, name) == getattr(real.oom, name), name
    assert (rank.stopped, rank.steps) == ("steady", large.steps)
    peaks = [[one.peak_allocated_bytes for one in r.steps_memory] for r in (rank, large)]
    assert peaks[0] == peaks[1] and rank.peak_allocated_bytes == large.peak_allocated_bytes
    assert rank.peak_reserved_bytes <= large.peak_reserved_bytes
    device = report.device
    assert device is not None and device.usable_bytes is not None
    assert rank.short_bytes is not None
    assert abs(rank.short_bytes - (rank.peak_reserved_bytes - device.usable_bytes)) <= 4 * MIB
    assert report.smallest_gpu is not None
    assert report.next_commands[0].startswith("oomdoctor run --emulate 'NVIDIA GeForce")
    (diagnosis,) = report.diagnoses
    assert diagnosis.numbers.requested_bytes == rank.oom.requested_bytes
    assert diagnosis.short_bytes == rank.short_bytes and diagnosis.remedies
    assert diagnosis.where is not None and diagnosis.where.line == _line(script, "loss = net(")
    assert "step" in out and "out of memory" not in out
    assert "needs" in error and "short by" in error


def test_past_the_limit_with_expandable_segments(watched: Watched) -> None:
    setting = 'import os; os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\n'
    script = setting + loop(rows=40_000)
    report, _, error = watched.run("1GiB", script)
    roomy, _, _ = watched.run("T4", script)
    assert report.ranks, error
    (rank,), (large,) = report.ranks, roomy.ranks
    assert rank.oom is not None and rank.oom.went_past and rank.stopped == "steady"
    assert rank.peak_allocated_bytes == large.peak_allocated_bytes
    assert rank.peak_reserved_bytes <= large.peak_reserved_bytes
    assert rank.oom.least_bytes < rank.peak_allocated_bytes


LOGITS = """
import torch
model = torch.nn.Sequential(
    torch.nn.Embedding(32000, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 32000)
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    ids = torch.zeros(4096, dtype=torch.long, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(ids)
    torch.nn.functional.cross_entropy(logits.float(), ids).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("card", [weekly("1GiB"), "2.4GiB"])
def test_past_the_limit_the_cache_is_that_of_a_large_card(watched: Watched, card: str) -> None:
    """Torch empties it before, which on a card that is nearly large enough leaves other gaps."""
    (rank,), (large,) = (watched.run(one, LOGITS)[0].ranks for one in (card, "T4"))
    assert rank.oom is not None and rank.oom.went_past
    assert rank.peak_allocated_bytes == large.peak_allocated_bytes
    assert rank.peak_reserved_bytes == large.peak_reserved_bytes


CACHED = """
import torch
half, rest = 300 << 20, 400 << 20
x = torch.empty(half, dtype=torch.uint8, device="cuda")
del x
y = torch.empty(rest, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_reserved() >> 20, torch.cuda.mem_get_info()[1] >> 20)
"""


def test_torch_frees_its_cache_before_it_goes_past_the_limit(watched: Watched) -> None:
    report, out, _ = watched.run("1GiB", CACHED)
    (rank,) = report.ranks
    assert out == "400 1024\n"
    assert (report.exit_code, rank.outcome, rank.retries, rank.oom) == (0, "fits", 1, None)


LIES = """
import torch
total = torch.cuda.mem_get_info()[1]
x = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
free, after = torch.cuda.mem_get_info()
print(free, total == after == torch.cuda.get_device_properties(0).total_memory)
raise KeyError("column")
"""


def test_past_the_limit_a_card_is_as_large_as_it_is(watched: Watched) -> None:
    report, out, error = watched.run("1GiB", LIES)
    (rank,) = report.ranks
    assert out == "0 True\n"
    assert (report.status, report.exit_code) == ("no", 1)
    assert rank.oom is not None and rank.oom.went_past
    assert report.smallest_gpu is None and not any("--emulate" in c for c in report.next_commands)
    assert "needs at least" in error


GROWS = """
import torch
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters())
kept = []
for step in range(999):
    net(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    kept.append(torch.empty(400 << 20, dtype=torch.uint8, device="cuda"))
"""


def test_a_run_whose_memory_grows_forever_ends(watched: Watched) -> None:
    report, _, error = watched.run("1GiB", GROWS)
    (rank,) = report.ranks
    assert (rank.stopped, report.smallest_gpu) == ("past", None) and rank.steps < 40
    assert "memory does not repeat" in error
    script = (
        "import torch\nkept = []\nwhile True: kept.append(torch.empty(64 << 30, device='cuda'))"
    )
    report, _, _ = watched.run("1GiB", script)
    assert (report.status, report.exit_code) == ("no", 1)
    assert report.ranks[0].peak_reserved_bytes > 2**41


HALVES = """
import sys, torch
net = torch.nn.Linear(1024, 1024).cuda()
def train(rows):
    for _ in range(2):
        net(torch.randn(rows, 1024, device="cuda")).pow(2).mean().backward()
rows = 200_000
while True:
    try:
        train(rows)
        break
    except torch.cuda.OutOfMemoryError:
        rows //= 2
print(rows)
"""
FINDS = """
import torch
from accelerate.utils import find_executable_batch_size
net = torch.nn.Linear(1024, 1024).cuda()
@find_executable_batch_size(starting_batch_size=200_000)
def train(batch_size):
    net(torch.randn(batch_size, 1024, device="cuda")).pow(2).mean().backward()
    return batch_size
print(train())
"""


@pytest.mark.parametrize("script", [HALVES, FINDS])
def test_a_script_that_handles_the_error_gets_it(watched: Watched, script: str) -> None:
    report, out, _ = watched.run("1GiB", script)
    (rank,) = report.ranks
    assert (report.status, report.exit_code, rank.outcome) == ("ok", 0, "fits")
    assert rank.oom is not None and rank.oom.caught and not rank.oom.went_past
    assert 5_000 < int(out) < 100_000


def test_an_error_that_the_script_catches(watched: Watched) -> None:
    script = """
import torch
print(torch.cuda.get_device_name(), torch.cuda.device_count())
try:
    torch.empty(20 << 30, device="cuda")
except torch.OutOfMemoryError:
    print("too large")
x = torch.empty(16 << 20, device="cuda")
del x
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.max_memory_allocated())
torch.accelerator.reset_peak_memory_stats()
x = torch.empty(1 << 20, device="cuda")
"""
    report, out, _ = watched.run("3xT4", script)
    (rank,) = report.ranks
    assert out == "Tesla T4 (emulated) 3\ntoo large\n0\n"
    # What the script resets for itself is still the peak of the run.
    assert rank.peak_allocated_bytes == 64 * MIB
    assert (report.exit_code, rank.outcome) == (0, "fits")
    assert rank.oom is not None and rank.oom.caught


def test_a_script_that_fails_on_a_value(watched: Watched) -> None:
    script = """
import torch
x = torch.randn(8, 8, device="cuda")
loss = (x @ x).sum()
assert loss.item() > 1e30, "the loss is wrong"
"""
    report, _, error = watched.run("T4", script)
    assert (report.status, report.exit_code) == ("error", 1)
    assert report.ranks[0].outcome == "failed"
    assert "unknown_values" in [warning.code for warning in report.warnings]
    assert "no kernel runs" in error


def test_a_notebook_that_ends_with_an_error_where_it_was_stopped(watched: Watched) -> None:
    """Its kernel catches the exit of a cell, keeps it as the last error, and goes on."""
    script = """
import sys, torch
cell = '''
layer = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(50):
    layer(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
'''
try:
    exec(cell)
except BaseException as error:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.exit(1)
"""
    report, _, error = watched.run("T4", script)
    assert (report.status, report.exit_code, report.ranks[0].outcome) == ("ok", 0, "fits")
    assert "Fits on" in error


def test_the_exit_code_is_kept_and_an_unknown_value_is_what_was_asked(watched: Watched) -> None:
    script = """
import sys, torch
x = torch.randn(64, 64, device="cuda")
sys.exit(int((x @ x).sum().item()))
"""
    report, _, _ = watched.run("T4", script, options=("--values", "9"))
    assert (report.exit_code, report.status) == (9, "error")


def test_a_signal_leaves_a_partial_summary(watched: Watched) -> None:
    script = loop().replace('"step", step, flush=True)', '"step", step, flush=True); wait()')
    script = "import time\ndef wait(): time.sleep(60)\n" + script
    process = watched.start("T4", script)
    assert process.stdout.readline() == "step 0\n"
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    report = loads(Report, (watched.folder / "report.json").read_text())
    assert (process.returncode, report.status) == (143, "interrupted")
    assert report.ranks[0].steps == 1 and report.ranks[0].peak_allocated_bytes > 0
    assert "Interrupted" in error


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", weekly("fsdp")])
def test_two_ranks_stop_after_the_same_step(watched: Watched, kind: str) -> None:
    report, out, error = watched.run("2xT4", RANKS, *torchrun(2, kind), options=("--why",))
    assert [rank.rank for rank in report.ranks] == [0, 1]
    first, second = report.ranks
    assert (first.stopped, first.steps) == (second.stopped, second.steps) == ("steady", first.steps)
    assert first.steps < 9
    assert out.count("rank 0 step") == out.count("rank 1 step") == first.steps - 1
    states = 4 * 4 * 4 * (1024 * 1024 + 1024)
    whole = first.peak_allocated_bytes > states
    assert whole == (kind == "ddp")
    assert report.exit_code == 0, error
    # As a plan for two ranks says it: NCCL's buffers lie outside of PyTorch's memory.
    card, device = of_ranks(card_named("T4", 0.0), 2), report.device
    assert isinstance(device, RunDevice) and device.context_bytes == card.context.likely
    for rank in report.ranks:
        assert rank.peak_device_bytes == rank.peak_reserved_bytes + card.context.likely
        assert rank.headroom_bytes == device.usable_bytes - rank.peak_reserved_bytes
    # 16 MiB of gradients or weights take longer over PCIe 3.0 than what is computed meanwhile.
    assert report.step is not None and report.step.time is not None
    seconds = {of.part: of.seconds for of in report.step.time.parts}
    assert report.step.launches["collective"] >= 1
    assert seconds["communication"] > seconds["products"]


def test_a_process_without_a_gpu_is_not_watched(watched: Watched) -> None:
    report, out, error = watched.run("T4", "import torch; print(torch.ones(2).sum().item())")
    assert (out, report.ranks) == ("2.0\n", ())
    assert "no process of the command used the GPU" in error


# Another process is on the GPU meanwhile, and code of the user's calls CUDA itself. NVIDIA's own
# library is where it names it, as in an environment with NVIDIA's wheels.
NOT_ALONE = """
import ctypes, subprocess, sys
import torch
other = subprocess.Popen([sys.executable, "-c", "import torch; "
    "held = torch.empty(3 << 30, dtype=torch.uint8, device='cuda'); print(1, flush=True); input()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
other.stdout.readline()
cuda = ctypes.CDLL(f"./libcudart.so.{torch.version.cuda.split('.')[0]}")
at = ctypes.c_void_p()
assert cuda.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(2 << 30)) == 0
held = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
other.communicate(b"\\n")
"""


def test_all_that_is_on_the_gpu_needs_room_on_the_smallest_card(watched: Watched) -> None:
    source = watched.folder / "real.c"
    source.write_text("void abort(void); __attribute__((constructor)) void load() { abort(); }")
    for name in ("cudart", "cublas", "cublasLt"):
        for major in (12, 13):
            library = watched.folder / f"lib{name}.so.{major}"
            subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    watched.environment["LD_LIBRARY_PATH"] = str(watched.folder)
    report, _, error = watched.run("RTX 4090", NOT_ALONE)
    assert report.exit_code == 0, error
    device, smallest = report.device, report.smallest_gpu
    assert device is not None and device.context_bytes is not None and smallest is not None
    own = {rank.peak_reserved_bytes >> 30: rank.peak_device_bytes for rank in report.ranks}
    assert own == {3: (3 << 30) + device.context_bytes, 4: (6 << 30) + device.context_bytes}
    assert 9 << 30 < smallest.total_bytes < 12 << 30


def test_the_largest_part_of_the_micro_batch_that_fits_is_proposed(watched: Watched) -> None:
    """A third fits, and half does not: a quarter was proposed, because only halves were tried."""
    script = """
import torch
layers = [torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(8)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.empty(24, 1024, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    words = ("python", "train.py", "--batch_size", "24")
    report, _, error = watched.run("4.4GiB", script, *words)
    remedy = report.diagnoses[0].remedies[0]
    assert (remedy.key, remedy.confirmed) == ("smaller_batch", "replay"), error
    assert "batch_size=8" in str(remedy.lines), error
    assert "then it needs at most" in error.lower()


def test_a_remedy_is_confirmed_by_a_second_run(watched: Watched) -> None:
    """The script says 512 rows; the second run takes fewer, whatever it says."""
    script = TRAINER.replace("batch_size=2, gradient_accumulation_steps=2", "batch_size=512")
    script = script.replace("return 64", "return 5120")
    report, _, error = watched.run("1GiB", script, options=("--cure",))
    assert (report.status, report.exit_code) == ("no", 3)
    remedy = report.diagnoses[0].remedies[0]
    assert (remedy.confirmed, remedy.enough) == ("run", True), error
    assert report.device is not None and remedy.leaves_bytes is not None
    assert remedy.leaves_bytes <= report.device.total_bytes
    assert "confirmed by a second run" in error
