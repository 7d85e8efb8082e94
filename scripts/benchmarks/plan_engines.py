"""Which is the faster engine of `plan`: the simulation, or torch on the emulated GPU?

    python scripts/benchmarks/plan_engines.py --python .venv-cuda/bin/python
    python scripts/benchmarks/plan_engines.py --model Qwen/Qwen2.5-0.5B --recipe quick

In one run, with empty cache folders: `plan` for one card, `plan` for four, and `probe --emulate`
with one try a rung, all with the same interpreter, whose torch is a CUDA build. The stand-in
libraries are built before. CPU time is that of all processes. `plan` would take the emulated GPU as
its engine if that were at least as fast; exit code 3 says that it is, and 0 that it is slower.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from command_cost import Cost, cost_of

ROOT = Path(__file__).parents[2]
FOUR = ("RTX 4090", "A100 SXM 80GB", "H100 SXM", "T4")


def main() -> int:
    """Run all commands; print and judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B")
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("--gpu", default="RTX 4090")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-cuda" / "bin" / "python")
    options = parser.parse_args()
    model = (options.model, "--source", "catalogue")
    asked = (*model, "--recipe", options.recipe, "--python", str(options.python.absolute()))
    one_try = ("--micro-batch", "1")
    cards = tuple(word for card in FOUR for word in ("--gpu", card))
    with tempfile.TemporaryDirectory() as made:
        built = Path(made) / "emulator"
        quick = (*model, "--recipe", "none", "--rung", "method=lora", *asked[-2:])
        emulate = ("probe", "--emulate", options.gpu)
        ran("the stand-ins are built", (*emulate, *quick, *one_try), built, None)
        print(f"{'command':40} {'wall s':>7} {'CPU s':>7} {'of the first':>13}")
        first = ran(
            "plan, a card, every size",
            ("plan", *asked, "--gpu", options.gpu),
            Path(made) / "plan",
            None,
        )
        ran("plan, four cards, every size", ("plan", *asked, *cards), Path(made) / "four", first)
        cost = ran("probe --emulate, one size", (*emulate, *asked, *one_try), built, first)
    return 3 if cost.cpu_s <= first.cpu_s else 0


def ran(name: str, words: tuple[str, ...], folder: Path, first: Cost | None) -> Cost:
    """Run a command and print its line."""
    folder.mkdir(exist_ok=True)
    own = {"HF_HUB_OFFLINE": "1", "XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-m", "oomdoctor", *words, "--quiet", "--json"]
    cost = cost_of(command, environment=own, folder=folder, answer=folder / "answer.json")
    if cost.returncode not in (0, 3, 6):
        raise SystemExit(f"error: {' '.join(command)} ended with {cost.returncode}")
    ratio = "" if first is None else f"{cost.cpu_s / first.cpu_s:13.2f}"
    print(f"{name:40} {cost.wall_s:7.1f} {cost.cpu_s:7.1f} {ratio}", flush=True)
    return cost


if __name__ == "__main__":
    sys.exit(main())
