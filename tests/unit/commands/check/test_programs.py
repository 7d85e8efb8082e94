"""`check`: a program that is not there is an error of the file, said before anything runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from oomdoctor.commands.check import run_check as checks
from oomdoctor.commands.check.run_check import CheckRequest, run_check
from oomdoctor.commands.check.running import Ran
from oomdoctor.errors import ExitCode, OomDoctorError


def _run(folder: Path, rows: str, *names: str) -> list[str]:
    """The names of the checks that ran, for a file with these rows."""
    file = folder / "oomdoctor.toml"
    file.write_text(f'[defaults]\ngpu = "T4"\n{rows}')
    said: list[str] = []
    run_check(CheckRequest(file, names, None, update=False, jobs=1), said.append)
    return said


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the checks that were started, none of which runs anything."""
    started: list[str] = []

    def run_all(some: object, *_: object) -> list[Ran]:
        assert isinstance(some, tuple)
        started.extend(check.name for check in some)
        return [Ran(None, 1, "nothing ran", 0.0) for _ in some]

    monkeypatch.setattr(checks, "run_all", run_all)
    return started


MISSING = """
[[check]]
name = "gone"
command = "no_such_trainer train.py"
[[check]]
name = "here"
command = "./here.sh"
[[check]]
name = "with python"
command = "python train.py"
python = "none/bin/python"
"""


def test_all_programs_that_are_missing_are_named_at_once(tmp_path: Path, ran: list[str]) -> None:
    with pytest.raises(OomDoctorError) as raised:
        _run(tmp_path, MISSING)
    assert raised.value.exit_code == ExitCode.USAGE and not ran
    message = raised.value.message
    assert "oomdoctor.toml has 3 errors:\ngone: there is no program 'no_such_trainer'" in message
    assert "here: there is no program" in message
    assert "with python: --python: there is no program" in message


def test_only_the_programs_of_chosen_checks_matter(tmp_path: Path, ran: list[str]) -> None:
    script = tmp_path / "here.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    _run(tmp_path, MISSING, "here")
    assert ran == ["here"]


def test_a_program_may_be_next_to_the_interpreter_or_on_the_path_of_the_check(
    tmp_path: Path, ran: list[str]
) -> None:
    for folder in ("env", "own"):
        program = tmp_path / folder / "trainer"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (tmp_path / "env" / "python").symlink_to(sys.executable)
    rows = '[[check]]\nname = "a"\ncommand = "trainer"\npython = "env/python"\n'
    rows += f'[[check]]\nname = "b"\ncommand = "trainer"\nenvironment = {{PATH = "{tmp_path}/own"}}'
    _run(tmp_path, rows)
    assert ran == ["a", "b"]
