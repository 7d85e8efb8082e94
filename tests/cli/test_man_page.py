"""The man page: made from the help, complete, and without a fault that groff or mandoc sees."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from oomdoctor.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from docs_man import PAGE, man_page  # noqa: E402

OLD_TYPER = tuple(map(int, typer.__version__.split(".")[:2])) < (0, 17)
TEXT = PAGE.read_text(encoding="utf-8")
# Each takes a page and says what is wrong with it.
LINTERS = {
    "groff": ["groff", "-man", "-Tutf8", "-ww", "-z"],
    "mandoc": ["mandoc", "-T", "lint", "-W", "warning"],
}


@pytest.mark.skipif(OLD_TYPER, reason="a new click takes the help of an old typer's arguments")
def test_it_is_that_of_the_code() -> None:
    assert man_page() == TEXT, "run `python scripts/build_docs.py`"


def test_it_has_every_command_and_option(cli) -> None:  # type: ignore[no-untyped-def]
    plain = TEXT.replace("\\-", "-")
    for verb in COMMANDS:
        assert f".SS oomdoctor {verb} [OPTIONS]" in plain
        for option in re.findall(
            r"^  (?:-\w, )?(--[a-z-]+)", cli(verb, "--help").out, re.MULTILINE
        ):
            assert re.search(rf"^\.B .*{option}\b", plain, re.MULTILINE), (verb, option)
    for section in ("NAME", "SYNOPSIS", "EXIT STATUS", "ENVIRONMENT", "FILES"):
        assert f".SH {section}\n" in TEXT
    assert "OOMDOCTOR_RUNS_LIMIT" in TEXT


@pytest.mark.parametrize("linter", LINTERS)
def test_no_linter_finds_a_fault(linter: str) -> None:
    if shutil.which(linter) is None:
        pytest.skip(f"{linter} is not installed")
    done = subprocess.run([*LINTERS[linter], str(PAGE)], capture_output=True, text=True)
    found = [
        line for line in (done.stdout + done.stderr).splitlines() if "missing date" not in line
    ]
    assert (done.returncode, found) == (0, []) or (linter == "mandoc" and found == [])


def test_a_reader_sees_text_and_no_macros() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", str(PAGE)], capture_output=True, text=True, check=True
    )
    page = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert "oomdoctor - find out which training configuration" in page
    assert not re.search(r"^\s*\.(TP|SH|SS|P|B|nf)\b", page, re.MULTILINE)
