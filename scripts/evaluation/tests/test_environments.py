"""Environments of evaluations: made once, and what is not complete is said."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from environments import make_once


def _calls(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> list[list[str]]:
    calls: list[list[str]] = []

    def run(command: list[Any], **options: Any) -> SimpleNamespace:
        calls.append([str(word) for word in command])
        if "venv" in calls[-1]:
            Path(command[-1]).mkdir(exist_ok=True)
            return SimpleNamespace(returncode=0)
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _calls(monkeypatch)
    folder = tmp_path / "venv"
    for _ in range(2):
        assert make_once(folder, [("a",), ("b", "c")]) == folder / "bin" / "python"
    assert [call[-1] for call in calls] == [str(folder), "a", "c"]


def test_one_that_is_not_complete_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _calls(monkeypatch, code=1)
    for _ in range(2):
        with pytest.raises(SystemExit, match="pip install a failed"):
            make_once(tmp_path / "venv", [("a",)])
    assert len(calls) == 4
