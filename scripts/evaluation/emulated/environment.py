"""An environment with the library versions of the published rows, made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STAND_INS = HERE / "stand_ins"


def make(folder: Path) -> Path:
    """The interpreter of the environment; it is made if the folder has none. Needs a network."""
    python = folder / "bin" / "python"
    done = folder / ".made"
    if done.exists():
        return python
    print(f"making {folder}: about 1 GB of downloads", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "-r", HERE / "requirements-fms-torch.txt"], check=True)
    subprocess.run([*pip, "-r", HERE / "requirements-fms.txt"], check=True)
    done.touch()
    return python
