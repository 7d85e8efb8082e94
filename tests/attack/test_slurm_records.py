"""What Slurm and other users' jobs say costs one job at most, never the list of all."""

from __future__ import annotations

import errno
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.system.slurm import jobs
from oomdoctor.system.slurm.outputs import Folders, Submission, output_files
from oomdoctor.system.slurm.records import FIELDS, JobRecord, from_sacct
from oomdoctor.system.slurm.site import start_of


def submission(folder: Path, line: str = "", **told: Any) -> Submission:
    return Submission("7", "7", "train", "me", "n1", folder, line, **told)


def locked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse what is in a folder, as the system does to a user without rights to it."""
    real = os.stat

    def stat(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        if not isinstance(path, int) and Path(os.fsdecode(path)).parent == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "stat", stat)


def test_a_folder_of_another_user_has_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One such job was an internal error for all."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for folder in (theirs, mine):
        folder.mkdir()
        (folder / "slurm-7.out").write_text("text")
    locked(theirs, monkeypatch)
    assert output_files(submission(theirs, "sbatch job.sh"), Folders()) == ()
    assert output_files(submission(mine), Folders()) == (mine / "slurm-7.out",)
    record = JobRecord("sacct", "7", "TIMEOUT", work_dir=str(theirs), outputs=(f"{theirs}/a.out",))
    monkeypatch.chdir(tmp_path)
    job = jobs._job("7", [record])
    assert job.files == ()
    assert f"cannot read {theirs}/a.out: Permission denied" in job.notes
    assert "looked for" not in str(job.notes)


@pytest.mark.parametrize(
    "pattern", ["x" * 5000, "%999999999999j.out", f"%{'9' * 5000}j.out", "a\0b.out", "x/" * 5000]
)
def test_a_name_that_no_file_has(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").write_text("text")
    job = submission(tmp_path, f"sbatch -o {pattern} job.sh")
    assert output_files(job, Folders()) == (tmp_path / "slurm-7.out",)
    told = submission(tmp_path, told=(pattern,))
    assert output_files(told, Folders()) == (tmp_path / "slurm-7.out",)


def test_a_width_pads_numbers_only(tmp_path: Path) -> None:
    (tmp_path / "train-n1.out").write_text("text")
    job = submission(tmp_path, "sbatch --output=%9x-%4N.out job.sh")
    assert output_files(job, Folders()) == (tmp_path / "train-n1.out",)


def test_a_number_has_ten_digits_at_most(tmp_path: Path) -> None:
    """As sbatch does it."""
    (tmp_path / "0000000007.out").write_text("text")
    job = submission(tmp_path, "sbatch --output=%99j.out job.sh")
    assert output_files(job, Folders()) == (tmp_path / "0000000007.out",)


@pytest.mark.parametrize("size", ["1.2.3G", "9" * 400 + "G", ".", "1.", "٣G", "²G"])
@pytest.mark.parametrize("count", ["1", "9" * 5000, "²"])
def test_a_size_that_is_none(size: str, count: str) -> None:
    cells = {"JobID": "7", "State": "FAILED", "MaxRSS": size, "ReqMem": f"{size}n", "NNodes": count}
    (record,) = from_sacct("|".join(cells.get(name, "") for name in FIELDS))
    assert record.peak_bytes is None
    assert record.requested_bytes is None


def test_a_count_that_is_none_leaves_the_size() -> None:
    cells = {"JobID": "7", "State": "FAILED", "ReqMem": "1Gn", "NNodes": "9" * 5000}
    (record,) = from_sacct("|".join(cells.get(name, "") for name in FIELDS))
    assert record.requested_bytes == 1 << 30


def test_a_pipe_in_the_place_of_a_script_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.sh")
    assert Folders().directives(tmp_path / "job.sh") == ()


def test_a_script_that_is_not_utf_8_has_its_directives(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_bytes(b"#!/bin/sh\n# caf\xe9\n#SBATCH -o caf\xe9.out\n")
    assert Folders().directives(tmp_path / "job.sh") == ("-o", "caf\ufffd.out")


@pytest.mark.parametrize("text", ["9" * 12 + "d", "9" * 5000 + " hours ago"])
def test_a_time_that_no_clock_has_is_left_to_sacct(text: str) -> None:
    assert start_of(text, datetime(2026, 11, 23)) == text
