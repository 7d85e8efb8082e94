"""Does `plan --from` give an RL job the peaks that its program has on the emulated GPU?

    python scripts/evaluation/rollouts.py --write tests/data/emulated/rollouts.json
    python scripts/evaluation/rollouts.py --check tests/data/emulated/rollouts.json

Each row of `third/rows.py` with an engine on its card is planned from its own command, and compared
with what `third_party.py` recorded of it: the tensors of the process that trains, and the whole
card while completions are generated and while the engine gets new weights. Nothing is run but
`plan`, which takes ten seconds a row, with the model's built-in facts.

--write FILE keeps the figures, for the documentation and the tests. --check FILE exits with 3 if a
plan gives others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from third.arithmetic import QWEN_PARAMETERS, QWEN_WORDS
from third.rows import CARD, GIB

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "data" / "emulated" / "third_party.json"
MOMENTS = {"generate": "generation", "sync": "new weights"}
TRAINED = "training process"
PROGRAMS = {"trl": "trl grpo", "verl": "", "openrlhf": ""}  # what starts the row's script by name
_EMBEDDING = QWEN_WORDS * 1024
# OpenRLHF's rows train with Muon, which `plan` takes for AdamW: DeepSpeed 0.19 keeps a 16-bit
# momentum of matrices beside Adam's two moments of the others (`_muon_momentum_buffer`).
MUON_LESS = (8 - 2) * (QWEN_PARAMETERS - _EMBEDDING)


def main() -> int:
    options = _options()
    readings = {r["name"]: r for r in json.loads(RECORDED.read_text()) if "engine" in r}
    compared = [compare(reading) for reading in readings.values()]
    for row in compared:
        for moment, (recorded, planned) in row["moments"].items():
            print(f"{row['name']:18} {moment:18} {_cells(recorded, planned)}")
    if options.write:
        options.write.write_text(json.dumps(compared, indent=1) + "\n")
    if options.check and json.loads(options.check.read_text()) != compared:
        print("the figures are not those of the file")
        return 3
    return 0


def compare(reading: dict[str, Any]) -> dict[str, Any]:
    """A row with pairs of bytes, recorded and planned, by moment; None for what is not comparable.

    Raises:
        subprocess.CalledProcessError: the command cannot be planned.
    """
    measured = plan(reading)
    planned = {moment["name"]: moment for moment in measured["moments"]}
    at = {noted["moment"]: noted["device_bytes"] for noted in reading["engine"]}
    muon = _muon_less(reading["command"])
    moments = {
        words: [at[name], planned[name]["device_bytes"] - muon] for name, words in MOMENTS.items()
    }
    if "optim muon" not in reading["command"]:  # its step has the temporaries of another optimizer
        moments = {TRAINED: [_trained(reading), _most(reading, planned)]} | moments
    return {"name": reading["name"], "moments": moments}


def plan(reading: dict[str, Any]) -> dict[str, Any]:
    """What `plan` predicts of the row's own command.

    Raises:
        subprocess.CalledProcessError: it cannot be planned.
    """
    start = PROGRAMS[reading["from"]] or "python"
    command = reading["command"].replace("{python} {script}", start).replace("{python}", start)
    words = ["plan", "--from", command, "--gpu", CARD, "--recipe", "none", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    (result,) = json.loads(ended.stdout)["results"]
    measured: dict[str, Any] = result["measurement"]
    return measured


def _trained(reading: dict[str, Any]) -> int:
    """The most that the process that trains has allocated."""
    return max(rank["peak_allocated_bytes"] for rank in reading["ranks"] if rank["steps"])


def _most(reading: dict[str, Any], planned: dict[str, Any]) -> int:
    """What the plan says of it, with the engine where this is in the same process."""
    shared = len(reading["ranks"]) == 1
    return max(
        moment["allocated_bytes"] + (moment["engine_bytes"] if shared else 0)
        for moment in planned.values()
    )


def _muon_less(command: str) -> int:
    """How much less the states of Muon are than those of AdamW, where they are on the card."""
    return MUON_LESS if "optim muon" in command and "ds.enable_sleep" not in command else 0


def _cells(recorded: int, planned: int) -> str:
    sizes = (f"{size / GIB:.2f} GiB" for size in (recorded, planned))
    return " | ".join((*sizes, f"{planned / recorded - 1:+.1%}"))


def rollouts_table(compared: list[dict[str, Any]]) -> str:
    """The table of RL jobs in docs/emulation.md."""
    lines = ["| script | moment | the program | plan | difference |", "|---|---|---|---|---|"]
    for row in compared:
        for moment, (recorded, planned) in row["moments"].items():
            lines.append(f"| {row['name']} | {moment} | {_cells(recorded, planned)} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=Path, help="compare the figures with those of a file")
    parser.add_argument("--write", type=Path, help="keep the figures in a file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
