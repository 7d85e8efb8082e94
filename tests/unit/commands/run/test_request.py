"""The line that runs the same request on another card."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.commands.devices.emulated import emulated_gpus
from oomdoctor.commands.run.session import WatchRequest, line_of


@pytest.mark.parametrize(
    ("gpus", "path", "line"),
    [
        ("T4", None, "oomdoctor run --emulate L4 -- python train.py"),
        ("2xT4", None, "oomdoctor run --emulate 2xL4 -- python train.py"),
        (
            "T4",
            "/cuda/bin",
            "oomdoctor run --emulate L4 --python /cuda/bin/python -- python train.py",
        ),
    ],
)
def test_the_line_asks_for_the_same(gpus: str, path: str | None, line: str) -> None:
    python = Path("/cuda/bin/python")
    command = ("python", "train.py")
    request = WatchRequest(command, emulated_gpus(gpus), python, "steady", path=path)
    assert line_of(request, "L4", alone=False) == line
