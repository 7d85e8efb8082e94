"""The folder of a run, whose files its processes import: nobody else can put files there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomdoctor.commands.run import session
from oomdoctor.commands.run.session import session_folder
from oomdoctor.system.environment import cache_dir


@pytest.fixture
def base() -> Path:
    found = cache_dir() / "sessions"
    found.mkdir(parents=True)
    return found


def left_by(base: Path, host: str) -> Path:
    """What a killed process of a host left; no process has its id."""
    folder = base / f"{2**22 + 1}-{host}-abcd"
    folder.mkdir()
    return folder


def test_what_a_killed_run_left_is_removed_on_its_host_only(base: Path) -> None:
    """Hosts that share a home folder removed each other's, in the middle of a run."""
    here, elsewhere = left_by(base, session._host()), left_by(base, "elsewhere")
    with session_folder() as folder:
        assert folder.parent == base
    assert not here.exists()
    assert elsewhere.exists()


def test_a_folder_that_others_could_write_to_is_closed(base: Path) -> None:
    base.chmod(0o777)
    with session_folder():
        assert base.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_is_not_used(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns it can put another folder in the place of a session."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with session_folder() as folder:
        assert folder.parent != base
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_a_folder_that_everybody_can_replace_is_not_used(base: Path) -> None:
    cache_dir().chmod(0o777)
    with session_folder() as folder:
        assert folder.parent != base


def test_a_link_that_a_killed_run_left_is_not_followed(base: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    link = base / f"{2**22 + 1}-{session._host()}-abcd"
    link.symlink_to(tmp_path / "mine")
    with session_folder():
        pass
    assert not link.is_symlink()
    assert (tmp_path / "mine").exists()
