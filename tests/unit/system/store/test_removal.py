"""A run is deleted whole, and nothing that is not a run of ours."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest
from example_gpu import gpu_report

from oomdoctor.system.store import run_folders
from oomdoctor.system.store.run_list import remove, remove_leftovers, stored_runs


def made(name: str = "20260102-030405-model-a7b1") -> Path:
    report = gpu_report()
    folder = run_folders.runs_dir() / name
    folder.mkdir(parents=True)
    assert report.request is not None
    run_folders.RunFolder(folder).write_request(report.request)
    run_folders.RunFolder(folder).write_report(report)
    return folder


def test_a_run_is_gone_and_what_its_links_lead_to_stays(tmp_path: Path) -> None:
    folder = made()
    (tmp_path / "precious").write_text("mine")
    (folder / "link").symlink_to(tmp_path)
    (folder / "01-inspect").mkdir()
    (folder / "01-inspect" / "up").symlink_to("../..")
    other = made("20260103-030405-model-a7b1")
    (_, run) = stored_runs()
    assert remove(run) is None
    assert not folder.exists() and other.is_dir()
    assert (tmp_path / "precious").read_text() == "mine"
    assert [path.name for path in other.parent.iterdir()] == [other.name]


def test_a_link_to_a_run_is_left_alone(tmp_path: Path) -> None:
    folder = made()
    outside = folder.rename(tmp_path / folder.name)
    folder.symlink_to(outside)
    (run,) = stored_runs()
    assert remove(run) is not None
    assert (outside / "report.json").is_file() and folder.is_symlink()


@pytest.mark.parametrize("name", ["holiday photos", "20260102-030405-model", "20260102"])
def test_a_folder_with_another_name_is_left_alone(name: str) -> None:
    folder = made(name)
    (run,) = stored_runs()
    assert remove(run) is not None and folder.is_dir()


def test_a_path_that_leads_elsewhere_is_refused() -> None:
    folder = made()
    (run,) = stored_runs()
    assert remove(replace(run, path=str(folder.parent))) is not None
    assert remove(replace(run, name="../../x")) is not None
    assert folder.is_dir()


def test_a_run_that_goes_on_is_left_alone() -> None:
    folder = made()
    (run,) = stored_runs()
    with run_folders.RunFolder(folder).running():
        assert remove(run) == "it is still running"
        (now,) = stored_runs()
        assert now.status == "running"
    assert folder.is_dir() and remove(run) is None


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = made()
    (folder / "running.lock").symlink_to(tmp_path / "made")
    (run,) = stored_runs()
    assert remove(run) is not None
    assert not (tmp_path / "made").exists()


def test_what_a_killed_deletion_left_is_not_listed_and_goes_next_time() -> None:
    folder = made()
    left = folder.rename(folder.with_name(f".deleted-{folder.name}-77"))
    assert list(stored_runs()) == []
    remove_leftovers()
    assert not left.exists()


def test_a_lock_of_another_process_shows(tmp_path: Path) -> None:
    folder = made()
    lock = os.open(folder / "running.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (run,) = stored_runs()
    assert run.status == "running"
    os.close(lock)


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff", "[" * 100_000])
@pytest.mark.parametrize("file", ["report.json", "request.json", "partial.json"])
def test_a_damaged_file_is_a_line_of_the_list(file: str, text: str) -> None:
    folder = made()
    (folder / file).write_bytes(text.encode(errors="surrogateescape"))
    made("20260103-030405-model-a7b1")
    fine, broken = stored_runs()
    assert (fine.status, broken.status) == ("ok", "unreadable")
    assert broken.outcome.startswith(f"unreadable: {file}: ") and broken.size_bytes > 0
    assert len(broken.outcome) <= 100 and broken.name not in broken.outcome


def test_the_size_is_that_of_the_disk_and_links_are_not_followed(tmp_path: Path) -> None:
    folder = made()
    (before,) = stored_runs()
    (folder / "log").write_bytes(b"x" * 1_000_000)
    os.link(folder / "log", folder / "same")
    (tmp_path / "large").write_bytes(b"x" * 5_000_000)
    (folder / "link").symlink_to(tmp_path / "large")
    (after,) = stored_runs()
    assert 1_000_000 <= after.size_bytes - before.size_bytes < 1_200_000
