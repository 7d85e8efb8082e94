"""Folders of runs, cases and live logs that somebody else made: no pipe or device is waited for."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.report.watch import LiveHeader
from oomdoctor.system.machine.lock import device_lock, is_marked, mark
from oomdoctor.system.regular_files import latest_first, text_of
from oomdoctor.system.store import calibration, live_logs
from oomdoctor.system.store.cases import CASE, open_case
from oomdoctor.system.store.run_folders import (
    PARTIAL,
    PROBLEM,
    REPORT,
    REQUEST,
    RUNNING,
    RunFolder,
    new_folder,
    runs_dir,
)
from oomdoctor.system.store.run_list import stored_runs

pytestmark = pytest.mark.timeout(20)

# An empty file of 3 GB would take as much memory.
PLANTED: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": lambda path: os.mknod(path, 0o140600),
    "sparse": lambda path: (path.touch(), os.truncate(path, 3 << 30)),
}


@pytest.fixture(params=PLANTED)
def plant(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return PLANTED[request.param]


def test_a_case(plant: Callable[[Path], object], tmp_path: Path) -> None:
    plant(tmp_path / CASE)
    with pytest.raises(OomDoctorError, match=r"not a regular file|larger|No such device") as error:
        open_case(str(tmp_path))
    assert error.value.exit_code == 5


@pytest.mark.parametrize("name", [REQUEST, PARTIAL, REPORT, PROBLEM])
def test_a_run_is_listed(plant: Callable[[Path], object], name: str) -> None:
    folder = new_folder(runs_dir(), "x")
    (folder / REQUEST).write_text("{}")
    (folder / name).unlink(missing_ok=True)
    plant(folder / name)
    (row,) = stored_runs()
    assert row.status in ("unreadable", "unfinished")
    if name != PROBLEM:
        with pytest.raises(OomDoctorError):
            RunFolder(folder).read_request()


def test_a_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RUNNING)
    assert not is_marked(tmp_path / RUNNING)
    with mark(tmp_path / RUNNING):
        pass


def test_the_lock_of_a_device() -> None:
    with device_lock("GPU-1", False, print):
        (path,) = (runs_dir().parent / "locks").iterdir()
    path.unlink()
    os.mkfifo(path)
    with (
        pytest.raises(OomDoctorError, match="not a regular file"),
        device_lock("GPU-1", False, print),
    ):
        pass


def test_a_live_log(plant: Callable[[Path], object], tmp_path: Path) -> None:
    plant(tmp_path / "1.jsonl")
    assert live_logs.read_header(tmp_path / "1.jsonl") is None
    assert live_logs.read_log(tmp_path / "1.jsonl") is None


def test_an_old_log_of_a_process_that_is_there_stays() -> None:
    """After the clock was set, or the process was suspended for a week."""
    path = live_logs.new_log_file()
    others = {}
    for name, pid in (("1", 1), ("2", 2**22 + 1)):
        header = LiveHeader(pid, platform.node(), None, 1, "", None, None, None, ())
        others[name] = path.with_name(f"{name}.jsonl")
        others[name].write_text(json.dumps(asdict(header)))
        os.utime(others[name], (0, 0))
    live_logs.new_log_file()
    assert others["1"].exists()
    assert not others["2"].exists()


def test_a_link_out_of_a_folder_is_read_as_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("text")
    (tmp_path / "here").symlink_to("there")
    assert text_of(tmp_path / "here", 100) == "text"
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        text_of(tmp_path / "round", 100)


def test_a_file_that_is_gone_when_it_is_looked_at(tmp_path: Path) -> None:
    """Another process removed it, or a link leads nowhere: `plan` ended with an internal error."""
    for name, when in (("old", 1), ("new", 2)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (when, when))
    (tmp_path / "gone").symlink_to("nowhere")
    assert [path.name for path in latest_first(tmp_path.iterdir())] == ["new", "old"]
    calibration._folder().mkdir(parents=True)
    (calibration._folder() / "l4.json").symlink_to("nowhere")
    assert calibration.newest(lambda _: True) is None
