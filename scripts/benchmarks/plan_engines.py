"""Which is the faster engine of `plan`: the simulation, or torch on the emulated GPU?

    python scripts/benchmarks/plan_engines.py --python .venv-cuda/bin/python
    python scripts/benchmarks/plan_engines.py --model Qwen/Qwen2.5-0.5B --recipe quick

In one run, with empty cache folders: `plan` and `probe --emulate --no-predict`, for one micro-batch
size a rung and for the best of all sizes, and `plan` for four cards; all with the same interpreter,
whose torch is a CUDA build. The stand-in libraries are built before. CPU time is that of all
processes. `plan` would take the emulated GPU as its engine if that were at least as fast in what it
does by default, the best of all sizes; exit code 3 says that it is, and 0 that it is slower.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from command_cost import print_header, shown

ROOT = Path(__file__).parents[2]
OTHERS = ("A100 SXM 80GB", "H100 SXM", "T4")


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
    one = ("--micro-batch", "1")
    plan = ("plan", *asked, "--gpu", options.gpu)
    emulate = ("probe", *asked, "--emulate", options.gpu, "--no-predict")
    others = tuple(word for card in OTHERS for word in ("--gpu", card))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        quick = (*model, "--recipe", "none", "--rung", "method=lora", *one, *asked[-2:])
        shown("the stand-ins are built", ("plan", *quick, "--gpu", "T4"), folder / "0", None)
        shown("the same", ("probe", *quick, "--emulate", "T4"), folder / "0", None)
        print_header("of plan")
        stood_in = folder / "0" / "oomdoctor" / "emulator"
        costs = {}
        for number, (name, words, of) in enumerate(
            (
                ("plan, one size", (*plan, *one), None),
                ("emulated, one size", (*emulate, *one), "plan, one size"),
                ("plan, all sizes", plan, None),
                ("emulated, all sizes", emulate, "plan, all sizes"),
                ("plan, all sizes, four cards", (*plan, *others), "plan, all sizes"),
            ),
            start=1,
        ):
            own = folder / str(number) / "oomdoctor"
            own.mkdir(parents=True)
            (own / "emulator").symlink_to(stood_in)
            costs[name] = shown(name, words, own.parent, costs.get(of or ""))
    return 3 if costs["emulated, all sizes"].cpu_s <= costs["plan, all sizes"].cpu_s else 0


if __name__ == "__main__":
    sys.exit(main())
