"""Runs one script under `oomdoctor run --emulate`, and reads the report."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from third import swept
from third.rows import Row
from third.sources import place

ROOT = Path(__file__).parents[3]
STAND_INS = Path(__file__).with_name("stand_ins")
STARTERS = {name: Path(__file__).with_name(f"{name}.py") for name in ("settings", "unchecked")}
TIMEOUT_S = 3600


def run(
    row: Row, python: Path, script: Path, inputs: Path, folder: Path, second: Path | None = None
) -> dict[str, Any]:
    """How a script ended and its peaks in bytes; `folder` is empty and keeps what it printed.

    The packages in `second` are imported before those of the environment.
    """
    checkout = Path(str(script).removesuffix(row.script))
    script = place(row, script, inputs, folder)
    # The launchers beside the interpreter are found first, as in an environment that is active.
    places = {"script": script, "inputs": inputs, "python": python.parent / "python"}
    places["checkout"] = checkout
    places |= {name: f"{places['python']} {file}" for name, file in STARTERS.items()}
    command = shlex.split(row.command.format(**places))
    report_file = folder / "report.json"
    words = [sys.executable, "-m", "oomdoctor", "run", "--python", str(python)]
    words += ["--emulate", row.cards, "--steps", row.steps, *row.options]
    began = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        ended = subprocess.run(
            [*words, "--report", str(report_file), "--", *command],
            cwd=folder,
            env=_environment(row, python, second, _modules(row, checkout, folder))
            | {"VLLM_STAND_IN_LOG": str(folder / "engine.jsonl")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    report = json.loads(report_file.read_text()) if report_file.exists() else {"ranks": []}
    return {
        "name": row.name,
        "from": f"{row.repository}@{row.commit[:8]}" if row.repository else row.package,
        "command": row.command,
        "cards": row.cards,
        "steps_asked": row.steps,
        "result": _result(ended.returncode, report),
        "ranks": [_rank(rank) for rank in report["ranks"]],
        **({"published": asdict(row.published)} if row.published else {}),
        **({"swept": swept.read(row.swept, folder, checkout)} if row.swept else {}),
        **({"engine": _moments(folder / "engine.jsonl")} if "vllm" in row.stand_in else {}),
        "host_seconds": round(time.monotonic() - began),
    }


def _modules(row: Row, checkout: Path, folder: Path) -> Path | None:
    """The folder that a row imports its repository's modules from.

    A package without `__init__.py` gets one, in a copy: an installed package would be taken first.
    """
    if not row.path:
        return None
    source = checkout / row.path
    if not row.bare:
        return source
    copy = folder.parent / "modules"
    shutil.copytree(source, copy)
    for package in copy.iterdir():
        (package / "__init__.py").touch()
    return copy


def _environment(
    row: Row, python: Path, second: Path | None, source: Path | None
) -> dict[str, str]:
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    more = [python.parents[1] / "older" / name for name in row.older.split()]
    more += [STAND_INS / name for name in row.stand_in.split()]
    more += [folder for folder in (second, source) if folder]
    modules = os.pathsep.join(map(str, (ROOT, *more)))
    own = {
        "HF_HUB_OFFLINE": "1",
        # transformers loads weights in four threads whose order varies, and a few MiB with it.
        "HF_DEACTIVATE_ASYNC_LOAD": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": path,
        "PYTHONPATH": modules,
    }
    return {**os.environ, **own}


def _moments(file: Path) -> list[dict[str, Any]]:
    """What the stand-in of vLLM noted: of each moment, the line with the most on the card."""
    most: dict[str, dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        noted = json.loads(line)
        before = most.get(noted["moment"])
        if before is None or noted["device_bytes"] > before["device_bytes"]:
            most[noted["moment"]] = noted
    return list(most.values())


def _result(code: int, report: dict[str, Any]) -> str:
    """One word: `ended`, `oom` or `failed`."""
    if any(rank["outcome"] == "oom" for rank in report["ranks"]):
        return "oom"
    return "ended" if code == 0 and report["ranks"] else "failed"


def _rank(rank: dict[str, Any]) -> dict[str, Any]:
    kept = ("rank", "steps", "peak_allocated_bytes", "peak_reserved_bytes")
    return {name: rank[name] for name in kept}
