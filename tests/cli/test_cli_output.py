"""The streams as a child process has them: pipes, closed, narrow encodings, a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from oomdoctor.system.store import run_folders


@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("<&-", 0)]
)
def test_a_closed_stream_does_not_matter(redirection, code):
    script = f"{sys.executable} -m oomdoctor gpus H200 {redirection}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.fixture
def accented(tmp_path):
    """A recipe whose name no ASCII stream can say."""
    file = tmp_path / "récette-模.toml"
    file.write_text('description = "café"\n[[rung]]\nmethod = "lora"\n', encoding="utf-8")
    return file


NARROW = {"PYTHONIOENCODING": "ascii"}
REFUSED = "error: cannot write the answer to stdout: No space left on device"


def test_a_narrow_stdout_loses_characters_and_not_the_answer(child, accented):
    done = child("recipes", "check", str(accented), env={**os.environ, **NARROW})
    assert done.returncode == 0
    assert done.stdout.endswith("r?cette-?.toml: no errors\n")


def test_a_narrow_stderr_loses_characters_and_not_the_error(child, accented):
    missing = str(accented.with_suffix(".none"))
    done = child("probe", "m", "--recipe", missing, env={**os.environ, **NARROW})
    assert done.returncode == 2
    assert "r?cette-?.none" in done.stderr


def test_json_is_utf8_whatever_the_locale_says(child):
    done = child("probe", "modèle-模", "--source", "catalogue", "--json",
                 env={**os.environ, **NARROW})  # fmt: skip
    assert done.returncode == 4
    assert "modèle-模" in json.loads(done.stdout)["errors"][0]["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("gpus",), []),
        (("gpus", "--json"), []),
        (("gpus", "no such card", "--json"), ["no known GPU matches", "hint:"]),
        (("--version",), []),
        (("--help",), []),
        (("plan", "--help"), []),
        (("recipes", "-h"), []),
        (("recipes", "show", "--help"), []),
        (("recipes", "show", "default"), []),
        (("show", "--json"), []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_full_disk_behind_stdout_is_said(golden, arguments, told):
    folder = run_folders.create("m")
    folder.write_request(golden("plan").request)
    folder.write_report(golden("plan"))
    done = onto_a_full_disk(*arguments)
    assert done.returncode == 1
    *before, last = done.stderr.splitlines()
    assert last == REFUSED
    assert len(before) == len(told)
    assert all(words in line for words, line in zip(told, before, strict=True))


def test_a_full_disk_is_said_as_well_where_nothing_is_buffered():
    done = onto_a_full_disk("--help", PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr) == (1, f"{REFUSED}\n")


def onto_a_full_disk(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """How a command ends whose stdout takes nothing."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        return subprocess.run(
            [sys.executable, "-m", "oomdoctor", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, **environment},
        )


def test_a_narrow_terminal_gets_ascii_signs(golden):
    folder = run_folders.create("m")
    folder.write_request(golden("gpu").request)
    folder.write_report(golden("gpu"))
    wide = on_a_terminal("show", PYTHONIOENCODING="utf-8", COLUMNS="140")
    narrow = on_a_terminal("show", PYTHONIOENCODING="ascii", COLUMNS="140")
    assert "±" in wide and "+-" in narrow and "?" not in narrow
    lines = narrow.splitlines()
    above = next(number for number, line in enumerate(lines) if line.startswith("  #  config"))
    head, row = lines[above : above + 2]
    assert head.index("batch") + len("batch") == row.index("4 x 8") + len("4 x 8")


@pytest.mark.parametrize(
    "arguments", [("gpus",), ("models",), ("recipes",), ("env",)], ids=" ".join
)
def test_a_terminal_is_filled_and_not_overfilled(arguments):
    # `env` prints these folders whole, however long pytest's own are.
    folders = {"XDG_STATE_HOME": "/state", "XDG_CACHE_HOME": "/cache", "HF_HOME": "/huggingface"}
    out = on_a_terminal(*arguments, COLUMNS="70", **folders)
    assert out
    assert max(len(line) for line in out.splitlines()) <= 70


def test_colour_is_for_terminals_that_want_it():
    assert "\x1b[" in on_a_terminal("env", NO_COLOR="")
    assert "\x1b[" not in on_a_terminal("env", NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal("env", NO_COLOR="", TERM="dumb")


@pytest.mark.parametrize(
    ("environment", "colored"),
    [
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "0", "NO_COLOR": ""}, False),
        ({"FORCE_COLOR": "", "NO_COLOR": ""}, False),
    ],
    ids=str,
)
def test_force_color_colors_a_pipe_and_no_color_wins(
    cli, golden, monkeypatch, environment, colored
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _stored(golden)
    out = cli("show").out
    assert "fits, " in out and "short by " in out
    assert ("\x1b[32mfits, " in out) == ("\x1b[33mshort by " in out) == colored
    assert ("\x1b[" in out) == colored
    assert "\x1b[" not in cli("show", "--json").out + cli("show", "--format", "csv").out
    assert ("\x1b[" in cli("gpus").out + cli("env").out) == colored


def test_forced_color_off_holds_on_a_terminal():
    assert "\x1b[" not in on_a_terminal("env", NO_COLOR="", FORCE_COLOR="0")


@pytest.mark.parametrize("columns", ["60", "80", "100", "140"])
def test_outcomes_are_colored_at_any_width(golden, columns):
    _stored(golden)
    out = on_a_terminal("show", NO_COLOR="", COLUMNS=columns)
    assert re.search(r"\x1b\[[0-9;]*32mfits, ", out)
    assert re.search(r"\x1b\[[0-9;]*33mshort by ", out)


def _stored(golden) -> None:
    folder = run_folders.create("m")
    folder.write_request(golden("gpu").request)
    folder.write_report(golden("gpu"))


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What a command prints when stdout is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "oomdoctor", *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    os.close(theirs)
    out = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side of a terminal is closed
            break
        if not part:
            break
        out += part
    os.close(ours)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    return out.decode().replace("\r\n", "\n")
