"""The versions that shape a simulation, in this interpreter and in another."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from oomdoctor.system.machine.libraries import EDITABLE, versions_here, versions_of


def test_another_interpreter_says_its_versions_itself(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    assert versions_of(str(other), os.environ) == versions_of(sys.executable, {}) == versions_here()


@pytest.mark.parametrize("script", ["exit 1", "echo not json", "echo []"])
def test_an_interpreter_that_does_not_say_is_unknown(tmp_path: Path, script: str) -> None:
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\n{script}\n")
    other.chmod(0o755)
    assert versions_of(str(other), os.environ) is None
    assert versions_of(str(tmp_path / "missing"), os.environ) is None


def test_a_package_that_may_be_edited_has_no_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "transformers-9.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: transformers\nVersion: 9.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert metadata.version("transformers") == "9.0"
    assert versions_here()["transformers"] == "9.0"
    commit = '{"url": "https://example.org", "vcs_info": {"commit_id": "abc"}}'
    (folder / "direct_url.json").write_text(commit)
    assert "abc" in versions_here()["transformers"]
    (folder / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    assert versions_here()["transformers"] == EDITABLE
    assert versions_of(sys.executable, {}) is None
