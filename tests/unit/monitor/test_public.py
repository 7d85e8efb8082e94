"""What users import: without torch, without transformers, and without what `run` does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import oomdoctor.monitor

LOADED = """
import sys
{}
print(*sorted(name for name in ("torch", "transformers", "lightning", "accelerate", "rich", "typer")
              if name in sys.modules))
"""


@pytest.mark.parametrize(
    "line",
    [
        "import oomdoctor.monitor",
        f"from oomdoctor.monitor import {', '.join(oomdoctor.monitor.__all__)}",
    ],
)
def test_importing_loads_neither_torch_nor_others(line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(line)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_every_name_is_there_and_no_other() -> None:
    for name in oomdoctor.monitor.__all__:
        assert getattr(oomdoctor.monitor, name).__doc__
    with pytest.raises(AttributeError):
        _ = oomdoctor.monitor.nothing


def test_a_wrong_share_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        oomdoctor.monitor.watch_memory(warn_at=92)
