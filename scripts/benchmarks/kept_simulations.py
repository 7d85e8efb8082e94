"""What kept simulations save, and what a sweep of lengths costs, as ratios to one plan.

    python scripts/benchmarks/kept_simulations.py
    python scripts/benchmarks/kept_simulations.py --model Qwen/Qwen2.5-0.5B --recipe quick

In one run: a plan with an empty cache folder, then plans of the same model for another card,
another budget, another effective batch and another micro-batch size; then, with an empty folder, a
sweep over seven lengths. Every command is a fresh process without a network. CPU time is that of
all processes; its ratios mean something on a busy machine too. Exit code 0 when the goals are met,
else 3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from command_cost import print_header, shown

KEPT_GOAL = 0.1  # of the first plan's CPU time
SWEEP_GOAL = 2.0
_SWEEP = "seq-len=512,1024,2048,4096,8192,16384,32768"
CHANGES = {
    "the same plan": (),
    "another card": ("--gpu", "A100 SXM 80GB"),
    "another budget": ("--gpu", "30GiB"),
    "another effective batch": ("--effective-batch", "32"),
    "another micro-batch": ("--micro-batch", "2"),
}


def main() -> int:
    """Run all commands; print and judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B")
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--gpu", default="RTX 4090")
    options = parser.parse_args()
    plan = ("plan", options.model, "--source", "catalogue", "--recipe", options.recipe)
    card = ("--gpu", options.gpu)
    met = True
    print_header("of one plan")
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as empty:
        first = shown("a first plan", (*plan, *card), Path(kept), None)
        for name, change in CHANGES.items():
            asked = (*plan, *change) if "--gpu" in change else (*plan, *card, *change)
            cost = shown(name, asked, Path(kept), first)
            met = met and cost.cpu_s <= KEPT_GOAL * first.cpu_s
        cost = shown("a sweep of 7 lengths", (*plan, *card, "--sweep", _SWEEP), Path(empty), first)
        met = met and cost.cpu_s <= SWEEP_GOAL * first.cpu_s
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
