#!/usr/bin/env python3
"""How many of ten broken trainings `run --cure` cures, with a proof.

    python scripts/evaluation/cures.py --python .venv-cuda/bin/python [NAME ...] [--write]

The trainings are the folders of scripts/evaluation/broken, and rows.toml says their cards and
commands. Each runs in a copy of its folder. --write keeps the results for the table in the docs,
which build_docs.py makes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BROKEN = ROOT / "scripts" / "evaluation" / "broken"
RESULTS = BROKEN / "results.json"


def rows() -> list[dict[str, Any]]:
    """The ten trainings."""
    return tomllib.loads((BROKEN / "rows.toml").read_text(encoding="utf-8"))["row"]


def cure(row: dict[str, Any], python: Path) -> dict[str, Any]:
    """The report of `run --cure` on a training, as plain JSON."""
    with tempfile.TemporaryDirectory(prefix="oomdoctor-broken-") as made:
        folder = Path(made, row["name"])
        shutil.copytree(BROKEN / row["name"], folder)
        report = Path(made, "report.json")
        words = ["run", "--emulate", row["gpu"], "--weights", "synthetic", "--cure", "--quiet"]
        words += ["--report", str(report), "--case", str(Path(made, "case"))]
        words += ["--python", str(python.absolute()), "--", *shlex.split(row["command"])]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            [sys.executable, "-m", "oomdoctor", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        if not report.exists():
            raise RuntimeError(ended.stderr)
        return dict(json.loads(report.read_text(encoding="utf-8")))


def result_of(report: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a report: the change that was tried last, its proof, and the peaks."""
    ranks = [rank["peak_device_bytes"] or 0 for rank in report["ranks"]]
    applied = report["applied"] or {}
    proof = applied.get("proof") or {}
    first = (report["diagnoses"] or [{"remedies": []}])[0]["remedies"][:1]
    proven = [remedy["change"] for remedy in first if remedy["confirmed"] == "run"]
    return {
        "status": report["status"],
        "before_bytes": max(ranks, default=None),
        "change": (proven or [applied.get("change")])[0],
        "proven": bool(proven),
        "peak_bytes": proof.get("peak_bytes"),
        "reason": proof.get("reason"),
        "in_a_file": bool(applied.get("diff")),
        "versions": {
            name: report["versions"][name]
            for name in ("torch", "transformers", "trl", "peft")
            if name in report["versions"]
        },
    }


def main() -> None:
    """Run the trainings and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    for row in rows():
        if asked.names and row["name"] not in asked.names:
            continue
        result = result_of(cure(row, asked.python))
        print(row["name"], json.dumps(result), flush=True)
        if asked.write:
            kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            kept[row["name"]] = result
            ordered = {each["name"]: kept[each["name"]] for each in rows() if each["name"] in kept}
            RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
