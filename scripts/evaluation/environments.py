"""Environments of their own for evaluations. Each is made once, in a folder. Needs a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

Step = Sequence[str | Path]


def make_once(folder: Path, steps: Sequence[Step], variables: dict[str, str] | None = None) -> Path:
    """The interpreter of the environment; it is made if the folder has none that was finished.

    Each step is what one call of `pip install` is given; `variables` are set for all of them. What
    goes into a folder of its own is installed by this interpreter, whose torch can be imported.
    """
    python = folder / "bin" / "python"
    done = folder / ".made"
    if done.exists():
        return python
    print(f"making {folder}: about 1 GB of downloads", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    environment = {**os.environ, "PYTHONPATH": "", **(variables or {})}
    for step in steps:
        by = sys.executable if "--target" in step else python
        if subprocess.run([by, *pip, *step], env=environment, check=False).returncode:
            words = " ".join(str(word) for word in step)
            raise SystemExit(f"error: {folder} is not complete: pip install {words} failed")
    done.touch()
    return python
