"""Runs training loops with a leak, and clean ones: loops.py FOLDER STEPS NAME...

Each runs on the GPU for so many steps and writes FOLDER/NAME.pickle.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path

import clean_loops
import leaks
import torch

Loop = Callable[[int], object]
LOOPS: dict[str, Loop] = {
    name: value
    for module in (clean_loops, leaks)
    for name, value in vars(module).items()
    if callable(value) and getattr(value, "__annotations__", {}).get("steps") == "int"
}


def run(name: str, steps: int, folder: Path) -> None:
    """Run a loop with a history of its own."""
    random.seed(0)
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=10_000_000)
    LOOPS[name](steps)
    torch.cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))
    torch.cuda.memory._record_memory_history(None)
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    for loop in sys.argv[3:]:
        run(loop, int(sys.argv[2]), Path(sys.argv[1]))
