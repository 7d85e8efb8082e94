"""How many worker runs a prediction spares: the same survey with and without it.

    python scripts/benchmarks/fewer_runs.py --model HuggingFaceTB/SmolLM2-135M --device cpu

Both surveys have the same ladder and budget. Counted are the runs that measured; simulations are
counted apart, since they need no device. `--vram` lets some rungs run out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Survey:
    """What one survey took; `largest` has the largest micro-batch that fits by label."""

    runs: int
    skipped: int
    seconds: float
    largest: dict[str, int | None]


def main() -> int:
    """Run both and compare; exit code 3 where they disagree about what fits."""
    options = parse_options()
    blind, predicted = survey(options, "--no-predict"), survey(options, "--predict")
    sys.stdout.write(
        f"{'':12} {'worker runs':>12} {'skipped':>8} {'seconds':>8}\n"
        f"{'blind':12} {blind.runs:12} {blind.skipped:8} {blind.seconds:8.0f}\n"
        f"{'predicted':12} {predicted.runs:12} {predicted.skipped:8} {predicted.seconds:8.0f}\n"
        f"{'ratio':12} {blind.runs / max(predicted.runs, 1):12.2f} {'':8} "
        f"{blind.seconds / predicted.seconds:8.2f}\n"
    )
    for label, size in blind.largest.items():
        if predicted.largest.get(label) != size:
            sys.stdout.write(
                f"{label}: largest micro-batch {size} without, "
                f"{predicted.largest.get(label)} with prediction\n"
            )
    return 0 if blind.largest == predicted.largest else 3


def survey(options: argparse.Namespace, flag: str) -> Survey:
    """One `oomdoctor probe` and what it says."""
    command = [sys.executable, "-m", "oomdoctor", "probe", options.model, flag, "--json", "--quiet"]
    for name in ("device", "recipe", "vram", "seq_len", "effective_batch"):
        value = getattr(options, name)
        if value is not None:
            command += ["--" + name.replace("_", "-"), value]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout)
    results = report["results"]
    return Survey(
        runs=sum(len(row["tries"]) for row in results),
        skipped=sum(row["outcome"] == "skipped" for row in results),
        seconds=report["elapsed_s"],
        largest={row["label"]: row["max_micro_batch_size"] for row in results},
    )


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--recipe", default="quick")
    for name in ("vram", "seq-len", "effective-batch"):
        parser.add_argument(f"--{name}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
