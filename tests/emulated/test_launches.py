"""What the emulated GPU notes of launches, and the time of a step that `run` makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from emulated_bench import Bench
from emulated_run import Watched
from tiny_text import trainable_folder, words_file

from oomdoctor.emulator.variables import LAUNCHES
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.costs import TF32
from oomdoctor.records.job.launches import Launch, read_launches
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LAUNCHING = """
import triton, triton.language as tl
@triton.jit
def added(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
x = torch.zeros(1000, 64, dtype=torch.bfloat16).cuda()
w = torch.zeros(32, 64, device="cuda", dtype=torch.bfloat16)
b = torch.zeros(32, device="cuda", dtype=torch.bfloat16)
torch.mm(x, w.t())
torch.nn.functional.linear(x, w, b)
torch.bmm(x.view(10, 100, 64), x.view(10, 100, 64).transpose(1, 2))
torch.mv(x.float(), w[0].float())
torch.set_float32_matmul_precision("high")
torch.mm(x.float(), w.float().t())
image = torch.zeros(2, 3, 8, 8, device="cuda")
torch.nn.functional.conv2d(image, torch.zeros(4, 3, 3, 3, device="cuda"))
added[(4,)](x, torch.empty_like(x), x.numel(), BLOCK=256, num_warps=2)
captured = torch.cuda.CUDAGraph()
with torch.cuda.graph(captured):
    torch.mm(x, w.t())
captured.replay()
captured.replay()
x.cpu()
pid = os.fork()  # a child has files of its own
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
tell(pid=os.getpid())
"""


def notes(folder: Path, pid: int) -> tuple[list[Launch], list[dict[str, Any]]]:
    """What a process launched, and the kinds of its operator calls."""
    names = (folder / f"names-{pid}").read_text().splitlines()
    calls = (folder / f"calls-{pid}").read_text().splitlines()
    data = (folder / f"launches-{pid}").read_bytes()
    return list(read_launches(data, names)), list(map(json.loads, calls))


def test_each_kind_of_launch_is_noted_with_its_shape(bench: Bench, tmp_path: Path) -> None:
    told = bench.run(LAUNCHING, **{LAUNCHES: str(tmp_path)})
    launches, calls = notes(tmp_path, told["pid"])
    products = [(launch.numbers, launch.dtype) for launch in launches if launch.kind == "product"]
    assert products == [
        ((1, 1000, 32, 64), "bfloat16"),
        ((1, 1000, 32, 64), "bfloat16"),
        ((10, 100, 100, 64), "bfloat16"),
        ((1, 1, 1000, 64), "float32"),
        ((1, 1000, 32, 64), TF32),
        ((1, 1000, 32, 64), "bfloat16"),
    ]
    begins, ends, made, *runs = [launch.numbers for launch in launches if launch.kind == "graph"]
    assert (begins[0], ends[0], made[0]) == (1, 2, 3)
    assert made[2] == ends[1]
    assert [numbers[:2] for numbers in runs] == [(4, made[1])] * 2
    plain, biased = [launch for launch in launches if launch.kind == "product"][:2]
    assert plain.transposed == biased.transposed == (True, False)
    assert (plain.epilogue, biased.epilogue) == (1, 4)  # CUBLASLT_EPILOGUE_BIAS
    copies = [(launch.direction, launch.numbers) for launch in launches if launch.kind == "copy"]
    assert copies == [("to_device", (128000,)), ("to_host", (128000,))]
    by_triton = [launch for launch in launches if launch.name == "added"]
    assert [launch.numbers for launch in by_triton] == [(4, 1, 1, 64, 1, 1)]
    assert by_triton[0].call == 0  # no operator of torch launched it
    of_call = Counter(
        calls[launch.numbers[0]]["schema"].partition("(")[0]
        for launch in launches
        if launch.kind == "call"
    )
    assert of_call["aten::mm"] == 3
    once = ("addmm", "bmm", "mv", "convolution")
    assert all(of_call[f"aten::{name}"] == 1 for name in once), of_call
    assert [launch.at_s for launch in launches] == sorted(launch.at_s for launch in launches)


RUNG = {"effective_batch_size": 4, "autocast_dtype": "none"}
COMMON = ("--recipe", "none", "--seq-len", "64", "--micro-batch", "2", "--json", "--quiet")


def kernels(trace: Path) -> list[dict[str, Any]]:
    """The slices of a predicted step, but phases."""
    events = json.loads(trace.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X" and event["tid"] == 1]


def products_of(slices: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """How often each shape is multiplied or attended to."""
    arguments = (each["args"] for each in slices if "shape" in each["args"])
    return Counter((tuple(each["shape"]), each["dtype"], each["phase"]) for each in arguments)


def test_a_script_launches_the_products_that_plan_predicts_in_the_same_time(
    watched: Watched, emulator_cache: Path, tmp_path: Path
) -> None:
    model = trainable_folder(tmp_path / "model")
    data = words_file(tmp_path / "train.txt", 64 * 24)
    words = ",".join(f"{key}={value}" for key, value in RUNG.items())
    command = (sys.executable, "-m", "oomdoctor", "plan", str(model), "--gpu", "RTX 4090")
    planned = subprocess.run(
        [*command, *COMMON, "--rung", words, "--trace", "full-bf16+batch-4"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)},
    )
    (file,) = json.loads(planned.stdout)["files"]
    config = TrainConfig(micro_batch_size=2, sequence_length=64, **RUNG)  # type: ignore[arg-type]
    script = export(StackRung(config, "pytorch", str(model), origin=("Measured.",)), "pytorch")
    line = ("python", "train.py", "--data", str(data))
    report, _, error = watched.run(
        "RTX 4090", script, *line, options=("--trace", str(tmp_path / "step.json"))
    )
    step = report.step
    assert step is not None, error
    assert step.time is not None, step.reason
    assert step.time.micro_steps == 2
    assert not step.unknown_kernels
    predicted, ran = kernels(Path(file["path"])), kernels(tmp_path / "step.json")
    one = products_of(predicted)  # the second micro-step is a single slice
    assert one
    assert products_of(ran) == Counter({key: 2 * count for key, count in one.items()})
    seconds = [sum(each["dur"] for each in slices) / 1e6 for slices in (predicted, ran)]
    assert seconds[1] == pytest.approx(step.time.seconds)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.05)
    multiplied = Counter[tuple[int, ...]]()
    for product in step.products:
        multiplied[product.batch, product.m, product.n, product.k] += product.count
    shapes = Counter(tuple(s["args"]["shape"]) for s in ran if len(s["args"].get("shape", ())) == 4)
    assert multiplied == shapes  # what cuBLAS was asked for is what torch's operators are
