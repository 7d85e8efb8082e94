"""What the README shows is what happens: its commands run, and the quick ones say the same.

A console block behind `<!-- exact -->` must print exactly that, one behind `<!-- run -->` must run.
All other lines that start with `oomdoctor` are run with the survey and the plan replaced.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- (?P<mark>\w+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(README)]
CONSOLE = [
    pytest.param(*shown, id=shown[1])
    for block in BLOCKS
    if block["mark"]
    for shown in [(block["mark"], *re.fullmatch(r"\$ (.*)\n((?:.|\n)*)", block["text"]).groups())]
]
COMMANDS = sorted(
    {
        re.sub(r"^\$ |\s+#.*| > \S+$", "", line)
        for block in BLOCKS
        if not block["mark"]
        for line in block["text"].splitlines()
        if re.match(r"(\$ )?oomdoctor [a-z]", line)
    }
)


def test_there_is_something_to_check():
    assert len(CONSOLE) >= 4
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize(("mark", "command", "output"), CONSOLE)
def test_a_shown_output_is_real(cli, mark, command, output):
    ended = cli(*shlex.split(command)[1:])
    said = ended.out + ended.err
    if mark == "exact":
        assert said.splitlines() == [line.rstrip() for line in output.splitlines()]
    else:
        assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shown_command_is_accepted(cli, survey, planned, command, tmp_path, monkeypatch):
    for name in ("trace.txt", "logs/a.out", "logs/*.out"):  # no shell here that expands a star
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / "tests/data/explain/trace.txt").read_text())
    monkeypatch.chdir(tmp_path)
    cli("probe", "m")  # so that there is a run to show
    ended = cli(*shlex.split(command)[1:])
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("script", ["demo", "test"])
def test_the_two_commands_are_there(script):
    assert f"./scripts/{script}.sh" in README
    assert (ROOT / "scripts" / f"{script}.sh").stat().st_mode & 0o111


def test_the_exit_codes_are_all_told():
    from oomdoctor.errors import ExitCode

    table = README.partition("## Exit codes")[2].partition("\n## ")[0]
    told = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.M)
            for code in row.split(",")}  # fmt: skip
    assert told == {int(code) for code in ExitCode}


def test_the_keys_of_a_rung_are_those_there_are():
    from oomdoctor.system.recipes.rungs import config_keys

    table = README.partition("### recipes")[2].partition("\n### ")[0]
    told = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.M)))
    assert set(told) <= set(config_keys())
    later = {"checkpoint_every", "compile", "offload", "sharding", "world_size", "allocator"}
    assert set(config_keys()) - set(told) == later
