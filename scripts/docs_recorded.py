"""What an example script of docs/examples printed on an emulated GPU, and the live log it wrote.

Called by scripts/build_docs.py, for blocks below `<!-- recorded: NAME -->`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
LIVE_LOG = EXAMPLES / "memory.jsonl"
CARD = "RTX 4090"
_TORCHS_OWN = re.compile(r"^\[?W\d{4}.*\n", re.MULTILINE)  # warnings of its C++ code


def recorded(name: str, width: int) -> str:
    """What the example printed, in lines that are at most `width` characters long."""
    lines = (EXAMPLES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=line[: len(line) - len(line.lstrip())],
            break_on_hyphens=False,
        )
        for line in lines
    )


def record(name: str, environment: Mapping[str, str]) -> None:
    """Run an example on an emulated GPU, and keep its output and its live log, if it wrote one.

    It gets the errors of a card that is full. It runs with the python on PATH, which needs a CUDA
    build of torch.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(EXAMPLES / f"{name}.py", folder)
        words = ["run", "--emulate", CARD, "--stop-at-oom", "--quiet", "--report", "report.json"]
        done = subprocess.run(
            [sys.executable, "-m", "oomdoctor", *words, "--", "python", f"{name}.py"],
            env={**os.environ, **environment, "XDG_STATE_HOME": folder, "PYTHONPATH": str(ROOT)},
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        text = _TORCHS_OWN.sub("", done.stdout + done.stderr)
        if not text or "Traceback" in text:
            raise SystemExit(f"{name}.py failed: {text}")
        (EXAMPLES / f"{name}.txt").write_text(text, encoding="utf-8")
        if (Path(folder) / LIVE_LOG.name).exists():
            shutil.copy(Path(folder) / LIVE_LOG.name, LIVE_LOG)


def live_log() -> str:
    """The first line of the recorded live log, and the line of a step."""
    lines = LIVE_LOG.read_text(encoding="utf-8").splitlines()
    step = next(line for line in lines if json.loads(line).get("free_bytes"))
    blocks = (_wrapped(lines[0]), _wrapped(step))
    return "\n\n".join(f"```json\n{block}\n```" for block in blocks)


def _wrapped(line: str) -> str:
    """One JSON line as several, broken behind commas."""
    rows = [""]
    for part in re.split(r"(?<=,) ", json.dumps(json.loads(line))):
        if rows[-1] and len(rows[-1]) + len(part) >= 100:
            rows.append("")
        rows[-1] += f"{' ' if rows[-1] else ''}{part}"
    return "\n ".join(rows)
