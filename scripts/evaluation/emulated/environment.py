"""An environment with the library versions of the published rows."""

from __future__ import annotations

import os
from pathlib import Path

from environments import make_once

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STAND_INS = HERE / "stand_ins"
OLDER = "liger"  # a folder of the environment with the older libraries of some rows


def make(folder: Path) -> Path:
    """The interpreter of the environment; it is made if the folder has none. Needs a network."""
    older = ("--target", folder / OLDER, "-r", HERE / "requirements-fms-liger.txt")
    steps = [
        ("--no-deps", "-r", HERE / "requirements-fms-torch.txt"),
        ("-r", HERE / "requirements-fms.txt"),
        ("--no-deps", *older),
    ]
    return make_once(folder, steps)


def modules(python: Path, *, older: bool) -> str:
    """What PYTHONPATH is for a row. Ends the program if the older libraries are not there."""
    folders = [STAND_INS, ROOT]
    if older:
        folder = python.absolute().parents[1] / OLDER
        if not folder.exists():
            raise SystemExit(f"error: no older libraries in {folder}; --venv makes them")
        folders.append(folder)
    return os.pathsep.join(str(folder) for folder in folders)
