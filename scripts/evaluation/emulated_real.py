"""Is the emulated GPU equal to real ones? Published measurements beside the same training.

    python scripts/evaluation/emulated_real.py
    python scripts/evaluation/emulated_real.py --only lora --python fms/bin/python
    python scripts/evaluation/emulated_real.py --benchmark fms-acceleration

Installs the library versions of the published rows into an environment of its own (`--venv`, about
1 GB of downloads), runs the stock SFTTrainer on the emulated card and compares what the benchmark
computed: bytes of `torch.cuda.max_memory_allocated`, by the Trainer's memory metrics. Beside it,
nvidia-smi's figure and what the emulated card shows: reserved memory and the context. Rows that
cannot be run are listed with the reason. Each row takes 5 to 60 seconds and up to 3 GiB of host
memory. Exit code 0 when no row is further off than 0.2 %, else 3.

--benchmark FOLDER runs the other rows of the benchmark instead, from a checkout of
foundation-model-stack/fms-acceleration: fused kernels, Liger's loss, GPTQ, Llama models. The loader
of GPTQ takes the whole checkpoint into host memory: 25 GB for Mixtral, 36 GB for Llama-2-70B.

--write FILE keeps the figures, for the documentation and the tests. Of --benchmark, only what was
emulated and the differences.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from emulated.benchmark import further_rows
from emulated.environment import HERE, make, modules
from emulated.readings import error, line
from emulated.rows import all_rows, card, why_not

from oomdoctor.emulator.card import Card, Devices
from oomdoctor.emulator.enter import entered

GOAL = 0.002
TIMEOUT_S = 900
GIB = 1 << 30


def main() -> int:
    options = _options()
    known = all_rows()
    every = list(further_rows(options.benchmark, known)) if options.benchmark else known
    rows = [row for row in every if any(name in row["id"] for name in options.only)]
    left_out = {row["id"]: reason for row in rows if (reason := why_not(row)) is not None}
    python = options.python or make(options.venv)
    readings = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            if row["id"] not in left_out:
                readings.append(reading(row, python, Path(folder), options.cache))
                print(line(readings[-1]), flush=True)
                if options.write:
                    _keep(readings, every, options.write, further=options.benchmark is not None)
    for name, reason in left_out.items():
        print(f"left out  {name}: {reason}")
    equal = sum(not r["difference_bytes"] for r in readings)
    print(f"{equal} of {len(readings)} rows are equal to the byte")
    worst = max((abs(error(r)) for r in readings), default=0)
    return 0 if readings and worst <= GOAL else 3


def reading(row: dict[str, Any], python: Path, folder: Path, cache: Path) -> dict[str, Any]:
    """What the emulated card shows for a row, beside what was measured."""
    on = card(row)
    told = _run(row, on, python, folder, cache)
    smi = [also for also in row.get("measured_also") or () if also["metric"] == "nvidia_smi"]
    device = told["reserved_bytes"] + on.context_bytes
    measured_device = round(smi[0]["peak_gb"] * GIB) if smi else None
    return {
        "id": row["id"],
        "card": on.name,
        "measured_bytes": row["measured_bytes"],
        "allocated_bytes": told["allocated_bytes"],
        "difference_bytes": told["allocated_bytes"] - row["measured_bytes"],
        "measured_device_bytes": measured_device,
        "reserved_bytes": told["reserved_bytes"],
        "device_bytes": device,
        "device_difference_bytes": None if measured_device is None else device - measured_device,
        "torch": told["torch"],
        "source": row["source"],
    }


def _keep(
    readings: list[dict[str, Any]], rows: list[dict[str, Any]], file: Path, *, further: bool
) -> None:
    """Write the readings beside those of other rows that the file has, in the rows' order."""
    if further:
        readings = [
            {key: value for key, value in r.items() if not key.startswith("measured")}
            for r in readings
        ]
    known = {r["id"]: r for r in json.loads(file.read_text())} if file.exists() else {}
    known |= {r["id"]: r for r in readings}
    ordered = [known[row["id"]] for row in rows if row["id"] in known]
    file.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def _run(row: dict[str, Any], on: Card, python: Path, folder: Path, cache: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as session_folder:
        file = folder / "row.json"
        file.write_text(json.dumps(row), encoding="utf-8")
        with entered(python, Devices(on), Path(session_folder), cache) as session:
            done = subprocess.run(
                [python, HERE / "training.py", file, folder],
                env={
                    **os.environ,
                    **session.variables,
                    "PYTHONPATH": modules(python, older=row.get("older", False)),
                },
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
    lines = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"error: {row['id']} did not end:\n{done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    assert "(emulated)" in told["device_name"], "the run was not on the emulated card"
    return told


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="rows with one of these texts")
    parser.add_argument("--python", type=Path, help="an interpreter with the versions of the rows")
    parser.add_argument("--venv", type=Path, default=Path(".venv-published"))
    parser.add_argument("--cache", type=Path, default=Path(".venv-published/emulator"))
    parser.add_argument("--benchmark", type=Path, help="a checkout of fms-acceleration")
    parser.add_argument("--write", type=Path, help="keep the figures in a file")
    options = parser.parse_args()
    options.cache = options.cache.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
