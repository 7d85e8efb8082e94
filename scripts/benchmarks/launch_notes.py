"""What the notes of launches (`run --emulate --why`) add to an emulated run: pairs of runs.

    python scripts/benchmarks/launch_notes.py --python cuda/bin/python [--pairs 5] [--steps 60]

The loops are those of run_overhead.py, without the CUDA graph. The time of a step is the processor
time of the whole process, watched as under `run`, without the notes and with them. The end of a run
with notes also takes some seconds of an interpreter that says what the operators cost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run_overhead import LOOP, ROOT

LOOPS = ("plain", "compiled")


def main(arguments: list[str]) -> int:
    """Print the median time of a step without and with notes, for each loop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="with a CUDA build of torch")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=LOOPS)
    options = parser.parse_args(arguments)
    print(f"{'loop':9} {'without':>10} {'with notes':>10} {'added':>10} {'share':>7}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "loop.py").write_text(LOOP)
        for loop in options.loops:
            watched = [sys.executable, "-m", "oomdoctor", "run", "--emulate", "A100", "--quiet"]
            command = [options.python, "loop.py", loop, str(options.steps), "process_time"]
            pairs = []
            for _ in range(options.pairs):
                without = _step_s([*watched, "--steps", "all", "--", *command], folder)
                noted = _step_s([*watched, "--steps", "all", "--why", "--", *command], folder)
                pairs.append((without, noted))
            bare = statistics.median(without for without, _ in pairs)
            more = statistics.median(noted - without for without, noted in pairs)
            times = [f"{seconds * 1e3:7.2f} ms" for seconds in (bare, bare + more, more)]
            print(f"{loop:9} {' '.join(times)} {more / bare:+7.1%}")
    return 0


def _step_s(command: list[str], folder: str) -> float:
    """The median processor time of a step, in seconds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": folder}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    told = [line for line in ended.stdout.splitlines() if line.startswith("TIMES ")]
    if not told:
        raise SystemExit(f"error: {' '.join(command)} failed\n{ended.stderr[-3000:]}")
    times: list[float] = json.loads(told[-1].removeprefix("TIMES "))["times"]
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
