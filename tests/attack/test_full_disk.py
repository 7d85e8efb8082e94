"""A full disk is said as such, with what to do; it is no bug of this program."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from oomdoctor.cli import main
from oomdoctor.errors import OomDoctorError
from oomdoctor.system.store.record_files import writing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_it_is_said(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(arguments: list[str]) -> int:
        raise OSError(number, os.strerror(number), "/home/me/job.json")

    monkeypatch.setattr(main, "program", full)
    assert main.run(["runs"]) == 5
    said = capsys.readouterr().err
    assert f"cannot write /home/me/job.json: {os.strerror(number)}" in said
    assert "free some space" in said
    assert "internal" not in said


def test_a_bug_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> int:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(main, "program", broken)
    assert main.run(["runs"]) == 1


def test_of_a_copy_the_target_is_named(tmp_path: Path) -> None:
    """The file that was read was named, and its disk had space."""
    with pytest.raises(OomDoctorError, match="cannot write the run to /there:"), writing(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device", "/here", None, "/there")
