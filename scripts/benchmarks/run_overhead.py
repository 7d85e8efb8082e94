"""What `oomdoctor run` adds to the steps of a training: pairs of runs, with it and without.

    python scripts/benchmarks/run_overhead.py --python cuda/bin/python [--pairs 5] [--steps 150]

Three loops: plain, with torch.compile, and one CUDA graph that is replayed. On a machine with a GPU
the time of a step is what a clock shows. Without one the loops run on an emulated GPU, where no
kernel runs: the time is then the processor time of the host alone. A step on a real GPU takes
longer, and hides the part of it that the GPU does not wait for, so the share is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oomdoctor.commands.devices.emulated import devices_of, emulated_gpus
from oomdoctor.emulator.enter import entered
from oomdoctor.system.environment import cache_dir
from oomdoctor.system.machine.nvml import list_gpus

ROOT = Path(__file__).resolve().parents[2]
LOOPS = ("plain", "compiled", "graph")
LOOP = """
import json, sys, time, torch
kind, steps, clock = sys.argv[1], int(sys.argv[2]), getattr(time, sys.argv[3])
torch.manual_seed(0)
layers = (torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
          for _ in range(12))
net = torch.nn.Sequential(*layers).cuda().bfloat16()
optimizer = torch.optim.AdamW(net.parameters(), capturable=kind == "graph")
model = torch.compile(net) if kind == "compiled" else net
rows = torch.randn(8, 512, 768, device="cuda", dtype=torch.bfloat16)

def step():
    optimizer.zero_grad(set_to_none=kind != "graph")
    model(rows).float().pow(2).mean().backward()
    optimizer.step()

if kind == "graph":
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
run = graph.replay if kind == "graph" else step
for _ in range(20):
    run()
torch.cuda.synchronize()
before, times = torch.cuda.memory_stats()["allocation.all.allocated"], []
for _ in range(steps):
    begin = clock()
    run()
    torch.cuda.synchronize()
    times.append(clock() - begin)
made = torch.cuda.memory_stats()["allocation.all.allocated"] - before
print("TIMES", json.dumps({"times": times, "allocations": made / steps}))
"""


def main(arguments: list[str]) -> int:
    """Print the median time of a step without and with `run`, for each loop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="with a CUDA build of torch")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=LOOPS)
    options = parser.parse_args(arguments)
    real = bool(list_gpus())
    print(f"on {'a real GPU' if real else 'an emulated GPU: processor time of the host alone'}")
    print(f"{'loop':9} {'allocations':>11} {'without':>10} {'with':>10} {'added':>10} {'share':>7}")
    with tempfile.TemporaryDirectory() as folder, _devices(real, options.python, folder) as added:
        (Path(folder) / "loop.py").write_text(LOOP)
        for loop in options.loops:
            clock = "perf_counter" if real else "process_time"
            command = [options.python, "loop.py", loop, str(options.steps), clock]
            ours = [sys.executable, "-m", "oomdoctor", "run", "--quiet", "--", *command]
            pairs = [
                (_median(command, folder, added), _median(ours, folder, added))
                for _ in range(options.pairs)
            ]
            bare = statistics.median(one for (one, _), _ in pairs)
            more = statistics.median(two - one for (one, _), (two, _) in pairs)
            times = [f"{seconds * 1e3:7.2f} ms" for seconds in (bare, bare + more, more)]
            print(f"{loop:9} {pairs[0][0][1]:11.0f} {' '.join(times)} {more / bare:+7.1%}")
    return 0


@contextmanager
def _devices(real: bool, python: str, folder: str) -> Iterator[dict[str, str]]:
    """The variables that let the loops see a GPU."""
    if real:
        yield {}
        return
    session, cache = Path(folder) / "session", cache_dir() / "emulator"
    session.mkdir()
    cache.mkdir(parents=True, exist_ok=True)
    gpu = devices_of(emulated_gpus("A100"))
    with entered(Path(python).absolute(), gpu, session, cache) as found:
        yield found.variables


def _median(command: list[str], folder: str, added: dict[str, str]) -> tuple[float, float]:
    """The median time of a step in seconds, and the allocations of a step."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": folder, **added}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    told = [line for line in ended.stdout.splitlines() if line.startswith("TIMES ")]
    if not told:
        raise SystemExit(f"error: {' '.join(command)} failed\n{ended.stderr[-3000:]}")
    found = json.loads(told[-1].removeprefix("TIMES "))
    return statistics.median(found["times"]), found["allocations"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
