"""Reports of rungs that only run on a card: those with Unsloth and with Transformer Engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_configs import CONFIGS
from tiny_text import trainable_folder

ROOT = Path(__file__).parents[2]


def larger(
    kind: str, sizes: Mapping[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with a model of other sizes, so that logits and activations decide."""
    task, architecture, config = CONFIGS[kind]
    monkeypatch.setitem(CONFIGS, kind, (task, architecture, {**config, **sizes}))
    return trainable_folder(folder, kind)


def report(cache: Path, python: Path, *words: str) -> dict[str, Any]:
    """The report of a command that tries no rungs but those of `words`."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "oomdoctor", *words, "--recipe", "none"),
            *("--python", str(python), "--json", "--quiet"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)},
    )
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document
