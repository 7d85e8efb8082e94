"""Throw made-up logs at `explain`, from bytes to JSON, and watch for exceptions, hangs and growth.

    python scripts/fuzz_explain.py [--inputs 1000000] [--seed 0] [--minutes 10]

Inputs are built from pieces of real shapes (messages of every row of the table, frames, prefixes,
boxes, escapes, ends and starts of runs) and then damaged. Every second one comes with a model and
settings, right and wrong ones. An input that runs a line of our code that none before it ran is
kept and bred from, which guides the search by coverage. An exception, more than a second per MB of
input, or memory that keeps growing ends the run with exit code 1 and the input in a file.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.codec import dumps
from oomdoctor.records.job.model import ModelRef
from oomdoctor.system import catalogue
from oomdoctor.system.models.hub import resolve

PIECES = [
    b"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    b"which 1.00 MiB is free. Process 7 has 1.00 GiB memory in use. Including non-PyTorch memory, "
    b"this process has 17179869184.00 GiB memory in use. 3.00 GiB allowed; Of the allocated memory "
    b"1.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.",
    b"CUDA out of memory. Tried to allocate 1.5 GiB (GPU 0; 8 GiB total capacity; 1 GiB already "
    b"allocated; 1 bytes free; 2 GiB reserved in total by PyTorch)",
    b"Allocation on device 0 would exceed allowed memory. Requested : 1 GiB Device limit : 2 GiB",
    b"MPS backend out of memory (MPS allocated: 2 GB, other allocations: 1 KB, max allowed: 3 GB).",
    b"DefaultCPUAllocator: can't allocate memory: you tried to allocate 99999999999999999999 bytes",
    b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.5GiB.",
    b"Ran out of memory in memory space hbm. Used 35.56G of 31.25G hbm.",
    b"OOM when allocating tensor with shape[2,3] and type float",
    b"No available memory for the cache blocks",
    b"allocating 1.5 MiB on device 0: cudaMalloc failed: out of memory",
    b"Out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:2kB",
    b"slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch.",
    b"DataLoader worker (pid 7) is killed by signal: Bus error.",
    b"Cuda failure 2 'out of memory'",
    b"Killed",
    b"exitcode  : -9",
    b"RuntimeError: CUDA error: device-side assert triggered",
    b"KeyError: 'x'",
    b"Traceback (most recent call last):\n",
    b'  File "/a/site-packages/torch/nn/modules/module.py", line 3, in forward\n    self.f(x)\n',
    b'  File "/home/me/train.py", line 30, in <module>\n    loss.backward()\n    ^^^^\n',
    b"File ~/a.py:3, in Net.forward(self)\n---> 3 x\n",
    "│ /a/b.py:3 in f │\n│ ❱ 3 │ x │\n".encode(),
    "│ ╭── locals ──╮ │\n│ │ x = 1 │ │\n│ ╰────╯ │\n".encode(),
    b"File &quot;/a/b.py&quot;, line 3, in &lt;module&gt; x() ",
    b'File "/a/c.py", line 4, in f g() ~~^^ File "/a/d.py", line 5, in g ',
    b"tensor([[ 0.1, 0.2],\n        [ 0.3, 0.4]])\n" * 9,
    b"you tried to allocate 2,147,483,648 bytes",
    b"sacct: 7 State=OUT_OF_MEMORY ExitCode=0:125 MaxRSS=4096K ReqMem=8192K\n",
    b"State=CANCELLED by 7\n",
    b"run.sh: line 4: 77 Bus error (core dumped) python\n",
    b"[rank3]: ",
    b"[default1]:",
    b"(Worker pid=7) ",
    b"2026-01-02 03:04:05,678 - a - ERROR - ",
    b"E0102 03:04:05.000 77 a.py:3] ",
    b"\x1b[31m",
    b"\x1b]52;c;AAAA\x07",
    b"\r 10%|# | 1/9 [00:01<00:02]",
    b"{'loss': 1.0, 'epoch': 0.1}\n",
    b"step 3/9 loss 1.0 mem 3.5 GiB\n",
    b'{"message": "Traceback (most recent call last):\\n  File \\"a\\"", "n": 1}\n',
    b"per_device_train_batch_size=4, model_name_or_path='a/b'",
    b"Training completed.\n",
    b"Model saved to out\n",
    b"retrying with batch size 2\n",
    b"a-1  | ",
    b"a-1 exited with code 0\n",
    b"node02: ",
    b"worker 1: exit code 1\n",
    b"## b.log\n",
    b"SLURM_JOB_ID=7\n",
    b"Starting run 2\n",
    b"```\n",
    b"restarting worker group\n",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff\xfe",
    b"  ",
    b"=",
    b".",
]
SETTINGS: dict[str, tuple[Any, ...]] = {
    "per_device_train_batch_size": (1, 8, 720, 0, -1, "4", "auto", True, None, 1.5),
    "max_length": (1, 2048, 131_072, 0, "4k", None),
    "gradient_accumulation_steps": (1, 16, 0, "auto"),
    "method": ("full", "lora", "qlora", "other"),
    "load_in_4bit": (True, False, "true"),
    "lora_r": (8, 0, 10**9, "16"),
    "lora_target_modules": ("all-linear", ["q_proj", "v_proj"], [], "x", {"a": 1}),
    "torch_dtype": ("bfloat16", "float32", "auto", "int3", None),
    "bf16": (True, False),
    "optim": ("adamw_torch", "adamw_bnb_8bit", "paged_adamw_8bit", "sgd", "no_such", 3),
    "gradient_checkpointing": (True, False, "on"),
    "attn_implementation": ("eager", "sdpa", "flash_attention_2", "?"),
    "use_liger_kernel": (True, False),
    "world_size": (1, 2, 8, 0, 10**6),
    "zero_stage": (0, 1, 2, 3, 9),
    "bits": (4, "x"),
}
SPECS = [
    resolve(ModelRef(name, source="catalogue"))
    for name in [model.id for model in catalogue.models()]
]
_PACKAGE = "oomdoctor"


class Coverage:
    """Lines of our package that have been run; `new` tells whether an input ran new ones.

    A line tells its place once: afterwards it costs nothing, so long runs stay fast.
    """

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int]] = set()
        self.new = False

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """A trace function for `sys.settrace`."""
        if _PACKAGE not in frame.f_code.co_filename:
            return None
        place = frame.f_code, frame.f_lineno
        if place not in self.seen:
            self.seen.add(place)
            self.new = True
        return self.trace


def build(chance: random.Random, corpus: list[bytes]) -> bytes:
    """A new input: fresh from the pieces, or bred from an earlier one."""
    if corpus and chance.random() < 0.5:
        data = chance.choice(corpus)
    else:
        data = b"".join(chance.choices(PIECES, k=chance.randint(1, 12)))
    for _ in range(chance.randint(0, 4)):
        at = chance.randint(0, len(data))
        to = min(len(data), at + chance.randint(0, 40))
        data = (
            data[:at] + chance.choice(PIECES) + data[at:],
            data[:at] + data[to:],
            data[:at] + data[at:to] * chance.randint(2, 60) + data[to:],
            data[:at] + chance.randbytes(4) + data[at:],
            data + chance.choice(corpus or PIECES),
            data.decode("utf-8", "replace").encode("utf-16"),
        )[chance.choices(range(6), (8, 6, 4, 4, 3, 1))[0]]
    return data[:20_000]


def given(chance: random.Random) -> Given:
    """What the user passed: nothing, or a model, settings or flags."""
    if chance.random() < 0.5:
        return Given()
    names = chance.sample(list(SETTINGS), chance.randint(0, len(SETTINGS)))
    return Given(
        model=chance.choice([None, *SPECS]),
        sequence_length=chance.choice([None, None, 1, 4096, 131_072]),
        micro_batch_size=chance.choice([None, None, 1, 16, 720]),
        settings={name: chance.choice(SETTINGS[name]) for name in names},
    )


def main() -> int:
    """Run until the number of inputs or the time is used up; 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance, coverage, corpus = random.Random(asked.seed), Coverage(), list[bytes]()
    until, done, at_first, slowest = time.monotonic() + asked.minutes * 60, 0, 0, 0.0
    while done < asked.inputs and time.monotonic() < until:
        data, passed = build(chance, corpus), given(chance)
        # Tracing costs tenfold; the arithmetic of a model alone would take a second.
        guided = (done < 2000 or done % 20 == 0) and passed.model is None
        coverage.new = False
        start = time.process_time()  # a busy machine is no hang
        try:
            sys.settrace(coverage.trace if guided else None)
            incidents, facts = scan(lines([data]))
            dumps(diagnose("fuzz", incidents, facts, passed))
        except Exception:  # noqa: BLE001 - whatever it is, it is what we look for
            sys.settrace(None)
            traceback.print_exc()
            return kept(data, passed)
        sys.settrace(None)
        elapsed = time.process_time() - start
        if not guided:
            slowest = max(slowest, elapsed)
        # With a model, the search for sets of changes tries thousands of them.
        limit = max(0.5, len(data) / 1e6) + (2.0 if passed.model else 0.0)
        if not guided and elapsed > limit:
            print(f"{elapsed:.2f} s for {len(data)} bytes")
            return kept(data, passed)
        if coverage.new and len(corpus) < 5000:
            corpus.append(data)
        done += 1
        if done % 10_000 == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            at_first = at_first or peak
            print(f"{done:,} inputs  {len(corpus)} kept  {len(coverage.seen)} lines  {peak} MiB")
            if peak > at_first + 100:
                return kept(data, passed)
    print(f"{done:,} inputs, nothing found; slowest {slowest * 1000:.0f} ms")
    return 0


def kept(data: bytes, passed: Given) -> int:
    """Write the input that showed the fault, and print what was passed with it."""
    path = Path("fuzz-found.bin")
    path.write_bytes(data)
    model = passed.model.id if passed.model else None
    print(f"the input is in {path}; {replace(passed, model=None)} with model {model}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
