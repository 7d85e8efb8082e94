"""Run the public code of published training runs on the emulated GPU, and keep what it launched.

    python scripts/evaluation/launched.py --python .venv-cuda/bin/python --site SITE --notes FOLDER

SITE is a folder with timm, torchvision and pillow for that interpreter, as `pip install --target
SITE --no-deps` makes it. Then `rates.py --launched FOLDER` judges the times. Takes ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cases.rates import FILE, NotExpressedError, Row, catalogued, gpu_of, has_public_code, rows_of

_PROGRAM = Path(__file__).parent / "programs" / "public_steps.py"
_CARD = "B200"  # whose memory holds every batch
_CONTEXT = 1 << 30  # bytes of a card that a process cannot have: its context, and other programs


def main() -> int:
    """Run, and print how many rows ran."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="has a CUDA build of torch")
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--published", type=Path, default=FILE)
    options = parser.parse_args()
    rows = _with_cards([row for row in rows_of(options.published) if has_public_code(row)])
    options.notes.mkdir(parents=True, exist_ok=True)
    python, site = str(options.python.absolute()), str(options.site.absolute())
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        program = [str(_PROGRAM), file.name, str(options.notes.absolute())]
        run = [
            sys.executable,
            "-m",
            "oomdoctor",
            "run",
            "--emulate",
            _CARD,
            "--why",
            "--steps",
            "all",
        ]
        path = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "OOMDOCTOR_CUDA_PYTHON": python}
        done = subprocess.run([*run, "--", python, *program], env=environment, check=False)
    cases = (options.notes / "cases.jsonl").read_text().splitlines()
    ran = sum("error" not in json.loads(case) for case in cases)
    print(f"{ran} of {len(rows)} rows ran", file=sys.stderr)
    return done.returncode


def _with_cards(rows: list[Row]) -> list[Row]:
    """The rows whose card is known, with what the program asks of it."""
    known: list[Row] = []
    for row in rows:
        try:
            gpu = gpu_of(row)
        except NotExpressedError:
            continue
        capability = [int(number) for number in (gpu.compute_capability or "0.0").split(".")]
        memory = (gpu.torch_total_bytes or gpu.total_bytes or gpu.memory_bytes) - _CONTEXT
        asked = {"memory_bytes": memory, "capability": capability}
        if row["kind"] == "forward":
            asked["config"] = catalogued(row["model"]).config
        known.append(row | asked)
    return known


if __name__ == "__main__":
    sys.exit(main())
