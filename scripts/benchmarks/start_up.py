"""How long a command takes before it has done anything: processor time beside a bare interpreter.

    python scripts/benchmarks/start_up.py [--runs 7]

Each command runs in turn with the bare interpreter, so that the ratio holds on a busy machine too.
The goals on an idle machine are 0.2 s for `--help` and 0.3 s for `explain`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from command_cost import cost_of

ROOT = Path(__file__).resolve().parents[2]
BARE = ["-c", "pass"]
COMMANDS = {
    "oomdoctor --help": ["-m", "oomdoctor", "--help"],
    "oomdoctor explain": ["-m", "oomdoctor", "explain", "tests/data/explain/trace.txt"],
    "oomdoctor gpus 4090": ["-m", "oomdoctor", "gpus", "4090"],
}


def main(arguments: list[str]) -> int:
    """Print the median processor time of each command and its ratio to a bare interpreter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args(arguments).runs
    print(f"{'command':24} {'CPU s':>8} {'x python':>9}")
    for name, command in COMMANDS.items():
        pairs = [(cpu_seconds(command), cpu_seconds(BARE)) for _ in range(runs)]
        ratio = statistics.median(ours / bare for ours, bare in pairs)
        print(f"{name:24} {statistics.median(ours for ours, _ in pairs):8.3f} {ratio:9.1f}")
    return 0


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one run, from the repository's root."""
    with tempfile.TemporaryDirectory() as folder:
        cost = cost_of(
            [sys.executable, *arguments],
            environment={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
            folder=ROOT,
            answer=Path(folder) / "stdout",
        )
    if cost.returncode:
        raise SystemExit(f"error: {' '.join(arguments)} ended with exit code {cost.returncode}")
    return cost.cpu_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
